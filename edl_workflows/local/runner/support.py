"""Finds what the runner does not support in a pod. Such a pod fails with all reasons; nothing is ignored
silently.

The module reads the pod as the API returns it, since unsupported fields are not modelled.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edl_workflows.core.exceptions import Problem
from edl_workflows.local.apiserver.objects import builtin, quantities
from edl_workflows.local.runner import listening

VOLUME_KINDS = ("configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret")
DEFAULT_TERMINATION_LOG = "/dev/termination-log"
_PROJECTED = frozenset({"configMap", "secret", "downwardAPI"})
_NO_MOUNTS = (
    "needs a mount namespace, which this user may not create on this machine (unprivileged user namespaces "
    "are off); use a hostPath volume whose path equals mountPath"
)
_PROBE = (
    "import ctypes,os,sys; sys.exit(ctypes.CDLL(None).unshare(0x20000 | (0 if os.getuid() == 0 else "
    "0x10000000)) != 0)"
)


@functools.cache
def mounts_possible() -> bool:
    """Whether this user may create mount namespaces on this machine."""
    probe = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE], check=False, capture_output=True, timeout=30
    )
    return probe.returncode == 0


@functools.cache
def loopback_obstacle() -> str:
    """Why this user cannot restrict a container's servers to the loopback interface; empty if it is
    possible."""
    probe = subprocess.run(
        [sys.executable, "-I", "-S", listening.__file__],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    error_lines = probe.stderr.strip().splitlines()
    return "" if probe.returncode == 0 else (error_lines or [f"exit code {probe.returncode}"])[-1]


def unsupported_fields(pod: Mapping[str, Any], *, mounts: bool, uid: int | None = None) -> list[Problem]:
    """Everything in a pod that the runner does not support.

    Args:
        pod: the pod as read from the API.
        mounts: whether mount namespaces are possible.
        uid: id of the user that containers run as; by default the current one.
    """
    spec, own = pod["spec"], os.getuid() if uid is None else uid
    problems = [*_nul_characters(spec, "spec")]
    problems += _security(spec.get("securityContext") or {}, "spec.securityContext", own)
    schema = builtin.type_schemas()["V1PodSpec"]
    problems += [
        Problem(cause.field, cause.message)
        for cause in quantities.check_quantities(spec, None, schema, "spec")
    ]
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or []}
    for index, volume in enumerate(spec.get("volumes") or []):
        problems += _volume(volume, f"spec.volumes[{index}]")
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or []):
            path = f"spec.{group}[{index}]"
            problems += _container(container, path, own)
            problems += _mounts(container, path, volumes, mounts=mounts)
    return problems


def _nul_characters(field: Any, path: str) -> Iterator[Problem]:
    """The texts that no process of Linux can have as an argument, a variable or a path."""
    if isinstance(field, str) and "\0" in field:
        yield Problem(path, "a NUL character is not possible in arguments, variables and paths of a process")
    below = (
        ((f"{path}.{name}", part) for name, part in field.items())
        if isinstance(field, Mapping)
        else ((f"{path}[{index}]", part) for index, part in enumerate(field))
        if isinstance(field, list)
        else ()
    )
    for inner, part in below:
        yield from _nul_characters(part, inner)


def _container(container: Mapping[str, Any], path: str, uid: int) -> Iterator[Problem]:
    if not container.get("command"):
        yield Problem(
            f"{path}.command",
            "required: the embedded cluster does not use images, so there is no default command",
        )
    for field in ("stdin", "tty", "volumeDevices"):
        if container.get(field):
            yield Problem(f"{path}.{field}", "not supported")
    if container.get("restartPolicy"):
        yield Problem(
            f"{path}.restartPolicy", "sidecar containers are not supported; make it an ordinary container"
        )
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (container.get(probe) or {}).get("grpc"):
            yield Problem(f"{path}.{probe}.grpc", "not supported; use exec, httpGet or tcpSocket")
    yield from _security(container.get("securityContext") or {}, f"{path}.securityContext", uid)


def _security(context: Mapping[str, Any], path: str, uid: int) -> Iterator[Problem]:
    if context.get("runAsUser") not in (None, uid):
        yield Problem(f"{path}.runAsUser", f"containers run as user {uid}")
    if context.get("runAsNonRoot") and uid == 0:
        yield Problem(f"{path}.runAsNonRoot", "the cluster runs as root, and so do its containers")
    if context.get("readOnlyRootFilesystem"):
        yield Problem(f"{path}.readOnlyRootFilesystem", "containers share the machine's file system")
    if context.get("privileged") and uid != 0:
        yield Problem(f"{path}.privileged", f"containers run as user {uid}")
    if (context.get("capabilities") or {}).get("add") and uid != 0:
        yield Problem(f"{path}.capabilities.add", f"containers run as user {uid}, without capabilities")


def _volume(volume: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for kind in volume.keys() - {"name", *VOLUME_KINDS}:
        yield Problem(f"{path}.{kind}", f"not supported; supported are {', '.join(VOLUME_KINDS)}")
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or []):
        for kind in source.keys() - _PROJECTED:
            yield Problem(
                f"{path}.projected.sources[{index}].{kind}", "not supported; a pod's KUBECONFIG has a token"
            )


def _mounts(
    container: Mapping[str, Any], path: str, volumes: Mapping[str, Mapping[str, Any]], *, mounts: bool
) -> Iterator[Problem]:
    for index, mount in enumerate(container.get("volumeMounts") or []):
        where = f"{path}.volumeMounts[{index}]"
        volume = volumes.get(mount["name"])
        if volume is None:
            yield Problem(f"{where}.name", f"Not found: {mount['name']!r} is not a volume of the pod")
        elif not mounts and not in_place(mount, volume):
            yield Problem(where, _NO_MOUNTS)
        if ".." in Path(mount.get("subPath") or "").parts or str(mount.get("subPath") or "").startswith("/"):
            yield Problem(f"{where}.subPath", "must be a relative path without '..'")
        if mount.get("mountPropagation") not in (None, "None"):
            yield Problem(f"{where}.mountPropagation", "not supported")
    log = container.get("terminationMessagePath") or DEFAULT_TERMINATION_LOG
    if log != DEFAULT_TERMINATION_LOG and not mounts:
        yield Problem(f"{path}.terminationMessagePath", _NO_MOUNTS)


def in_place(mount: Mapping[str, Any], volume: Mapping[str, Any]) -> bool:
    """Whether the volume is already at the path where the container mounts it."""
    path = str((volume.get("hostPath") or {}).get("path") or "")
    plain = not mount.get("readOnly") and not mount.get("subPath") and not mount.get("subPathExpr")
    return bool(path) and plain and os.path.normpath(path) == os.path.normpath(mount["mountPath"])
