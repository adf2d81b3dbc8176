"""Prepares the launch of a container: variables, arguments and mounts, with addresses of this machine."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.addresses import (
    NAMESPACE_VARIABLE,
    PORT_VARIABLE_PREFIX,
    SERVICE_MAP_VARIABLE,
)
from edl_workflows.local import files
from edl_workflows.local.network.network import Network
from edl_workflows.local.network.ports import LOOPBACK
from edl_workflows.local.network.rewrite import rewrite_apart
from edl_workflows.local.pods import Pod
from edl_workflows.local.runner.attempts import Launch, Mount
from edl_workflows.local.runner.containers import ContainerRunner
from edl_workflows.local.runner.environment import ValueSources, container_variables, expand_variables
from edl_workflows.local.runner.volumes import Lookups, PodVolumes

MACHINE_VARIABLES = (
    "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER",
    "VIRTUAL_ENV",
)  # fmt: skip
"""Variables that a container inherits from the cluster process: those that programs need on this machine, and
no secrets."""
LOOPBACK_VARIABLES = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "lo")
"""Make PyTorch's transports use the loopback interface, the only one on which pods can listen. By default
they select an interface themselves."""
TERMINATION_LOG_VARIABLE = "EDL_TERMINATION_LOG"
"""Where a container writes its termination message, since ``/dev/termination-log`` is not mounted."""


@dataclass(frozen=True)
class LaunchFactory:
    """Prepares the launches of containers.

    Attributes:
        network: assigns addresses and ports.
        lookups: returns the contents of ConfigMaps and Secrets, given a namespace.
        allocatable: resources of the node in units.
        kubeconfig: returns the text of the kubeconfig of a service account.
        loopback_only: whether containers' servers are restricted to the loopback interface.
    """

    network: Network
    lookups: Callable[[str], Lookups]
    allocatable: Mapping[str, int]
    kubeconfig: Callable[[str, str], str]
    loopback_only: bool

    def prepare(self, pod: Pod, container: ContainerRunner, folder: Path) -> Launch:
        """Create everything that the container needs.

        Raises:
            ContainerConfigError: an object that it refers to is missing.
            UnavailableError: the machine has no free port.
        """
        spec = container.container
        sources = self._sources(pod, folder, container)
        values = container_variables(spec, sources)
        volumes = self._volumes(pod, folder)
        volumes.prepare(sources)
        mounts = list(volumes.mounts(spec, values))
        if log := container.custom_termination_log():
            mounts.append(Mount(str(container.next_attempt().termination_log), log, read_only=False))
        rewrite = self.network.rewriter(pod)
        argv = [rewrite(expand_variables(text, values)) for text in [*spec.command, *spec.args]]
        own = set(sources.base) - {variable.name for variable in spec.env}
        env = {name: text if name in own else rewrite(text) for name, text in values.items()}
        users = {name: text for name, text in values.items() if name not in own}
        env |= rewrite_apart(users, rewrite, self.network.attach(pod).ports)
        env = {names.ENV_SHARED_MEMORY: str(volumes.shared_memory(spec)), **env}
        work = folder / "work" / spec.name
        work.mkdir(parents=True, exist_ok=True)
        self.network.publish()
        restricted = spec.security_context.allow_privilege_escalation is False
        return Launch(argv, env, spec.working_dir or str(work), mounts, restricted, self.loopback_only)

    def refresh(self, pod: Pod, folder: Path) -> None:
        """Update volumes of ConfigMaps and Secrets.

        Raises:
            ContainerConfigError: an object that they refer to is missing now.
        """
        self._volumes(pod, folder).prepare(self._sources(pod, folder, None))

    def excess(self, pod: Pod, folder: Path) -> str:
        """A message about a volume that exceeds its limit; empty if there is none. This reads many files:
        call it in a thread."""
        return self._volumes(pod, folder).excess()

    def _volumes(self, pod: Pod, folder: Path) -> PodVolumes:
        lookups = self.lookups(pod.metadata.namespace)
        return PodVolumes(folder / "volumes", pod.metadata.uid, pod.spec.volumes, lookups)

    def _sources(self, pod: Pod, folder: Path, container: ContainerRunner | None) -> ValueSources:
        lookups = self.lookups(pod.metadata.namespace)
        attached = self.network.attach(pod)
        base = machine_variables() | self._cluster_variables(pod, folder)
        base |= LOOPBACK_VARIABLES if self.loopback_only else {}
        if pod.spec.enable_service_links:
            base |= self.network.service_variables(pod)
        base |= {
            f"{PORT_VARIABLE_PREFIX}{port}": str(host_port) for port, host_port in attached.ports.items()
        }
        if container is not None:
            base[TERMINATION_LOG_VARIABLE] = str(container.next_attempt().termination_log)
        return ValueSources(
            pod=pod,
            ip=attached.ip,
            node_ip=LOOPBACK,
            config_map=lambda name: _text(lookups.config_map(name)),
            secret=lambda name: _text(lookups.secret(name)),
            allocatable=self.allocatable,
            base=base,
        )

    def _cluster_variables(self, pod: Pod, folder: Path) -> dict[str, str]:
        meta, spec = pod.metadata, pod.spec
        variables = {
            "HOSTNAME": spec.hostname or meta.name,
            NAMESPACE_VARIABLE: meta.namespace,
            SERVICE_MAP_VARIABLE: str(self.network.map_file),
        }
        if spec.automount_service_account_token:
            path = folder / "kubeconfig"
            files.write(path, self.kubeconfig(meta.namespace, spec.service_account_name))
            variables["KUBECONFIG"] = str(path)
        return variables


def machine_variables() -> dict[str, str]:
    """The `MACHINE_VARIABLES` that are set, and a PATH that begins with this installation's programs."""
    variables = {name: os.environ[name] for name in MACHINE_VARIABLES if name in os.environ}
    path = os.environ.get("PATH", os.defpath)
    return {**variables, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}"}


def _text(data: Mapping[str, bytes] | None) -> dict[str, str] | None:
    return None if data is None else {key: value.decode(errors="replace") for key, value in data.items()}
