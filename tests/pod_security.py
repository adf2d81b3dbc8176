"""The rules of the Pod Security Standard `restricted`, which include those of `baseline`.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/, as of Kubernetes 1.34.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

Manifest = Mapping[str, Any]
VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
SELINUX = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
KUBERNETES_ONLY = re.compile(r"# on Kubernetes: ")
EMBEDDED_ONLY = re.compile(r"^.*# embedded only\n", re.MULTILINE)


def for_kubernetes(text: str) -> str:
    """An example as `sed -e '/# embedded only/d' -e 's/# on Kubernetes: //'` prints it."""
    return KUBERNETES_ONLY.sub("", EMBEDDED_ONLY.sub("", text))


def violations(spec: Manifest) -> list[str]:
    """Everything in a pod's spec that `restricted` does not admit."""
    return [*_of_pod(spec), *(text for box in _containers(spec) for text in _of_container(spec, *box))]


def _containers(spec: Manifest) -> Iterator[tuple[str, Manifest]]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            yield f"{field}[{index}]", container


def _of_pod(spec: Manifest) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes") or ():
        if foreign := volume.keys() - VOLUMES - {"name"}:
            yield f"volume {volume['name']}: {', '.join(sorted(foreign))}"
    context = spec.get("securityContext") or {}
    for sysctl in context.get("sysctls") or ():
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    yield from _of_both("pod", context)


def _of_both(where: str, context: Manifest) -> Iterator[str]:
    """Rules about fields that a pod and a container have."""
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{where}: hostProcess"
    labels = context.get("seLinuxOptions") or {}
    if labels.get("type", "") not in SELINUX or labels.get("user") or labels.get("role"):
        yield f"{where}: seLinuxOptions"
    if (context.get("appArmorProfile") or {}).get("type") == "Unconfined":
        yield f"{where}: appArmorProfile"
    if context.get("runAsUser") == 0:
        yield f"{where}: runAsUser 0"
    if context.get("runAsNonRoot") is False:
        yield f"{where}: runAsNonRoot false"
    if (context.get("seccompProfile") or {"type": "Localhost"}).get("type") == "Unconfined":
        yield f"{where}: seccompProfile"


def _of_container(spec: Manifest, where: str, container: Manifest) -> Iterator[str]:
    context, pod = container.get("securityContext") or {}, spec.get("securityContext") or {}
    yield from _of_both(where, context)
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield f"{where}: hostPort"
    if context.get("privileged"):
        yield f"{where}: privileged"
    if context.get("procMount", "Default") != "Default":
        yield f"{where}: procMount"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: allowPrivilegeEscalation is not false"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"{where}: capabilities that are not dropped"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f"{where}: added capabilities"
    if not context.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield f"{where}: runAsNonRoot is not true"
    profile = context.get("seccompProfile") or pod.get("seccompProfile") or {}
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{where}: no seccompProfile"
