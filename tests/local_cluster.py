"""Runs embedded clusters for tests, each in a process of its own with its state in a given folder."""

import contextlib
import ipaddress
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local import daemon
from edl_workflows.local.runner import listening, processes
from edl_workflows.runtime.kube.connect import Cluster

STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Settings:
    """How the cluster runs.

    Attributes:
        cpu, memory, pods_per_core: capacity of the node. The defaults are generous, so that tests with many
            pods fit on any machine.
        back_off: first pause before a restart, in seconds.
        grace: seconds that pods get to end when the cluster stops.
        controller: whether it runs the controller.
        di_server: whether it runs the DI server.
    """

    cpu: str = "16"
    memory: str = "64Gi"
    pods_per_core: int = 500
    back_off: float = 0.2
    grace: float = 1.0
    controller: bool = False
    di_server: bool = False

    def arguments(self) -> list[str]:
        """As arguments of ``edl local up``."""
        flags = ["--cpu", self.cpu, "--memory", self.memory, "--back-off", str(self.back_off)]
        flags += ["--grace", str(self.grace), "--pods-per-core", str(self.pods_per_core)]
        flags += ["--di-server"] if self.di_server else []
        return [*flags, "--controller" if self.controller else "--no-controller"]


@dataclass
class LocalCluster:
    """An embedded cluster with its state in a folder.

    Attributes:
        folder: folder with its state, which `kill` and `down` keep.
        settings: how it runs.
    """

    folder: Path
    settings: Settings = field(default_factory=Settings)

    @property
    def kubeconfig(self) -> Path:
        """Path of the administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    def up(self) -> None:
        """Start the cluster unless it already runs.

        Raises:
            UnavailableError: it did not start.
        """
        daemon.up(daemon.DaemonStart(self.folder, self.settings.arguments()))

    def kill(self) -> None:
        """Kill the cluster's process with SIGKILL, like a crash. Processes of pods continue."""
        cluster_daemon = daemon.find(self.folder)
        if cluster_daemon is None:
            raise UnavailableError(f"no cluster runs in {self.folder}")
        os.kill(cluster_daemon.pid, signal.SIGKILL)
        _await_end(cluster_daemon.pid)

    def down(self) -> None:
        """Stop the cluster and all its pods."""
        daemon.down(self.folder, seconds=STOP_SECONDS)

    def client(self, namespace: str = "default") -> Cluster:
        """A client with the administrator's permissions."""
        return Cluster.from_kubeconfig(self.kubeconfig).in_namespace(namespace)


def servers(folder: Path) -> dict[str, bool]:
    """The TCP servers in the pods of a cluster: each command and address, and whether only processes of this
    machine can connect.

    Args:
        folder: folder of the cluster's state.
    """
    tcp_servers: dict[str, bool] = {}
    for uid in daemon.pod_uids(folder):
        for process in processes.marked_processes(uid):
            with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                tcp_servers |= _servers_of(process)
    return tcp_servers


def _servers_of(process: psutil.Process) -> dict[str, bool]:
    tcp_servers = {}
    for connection in process.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            private = ipaddress.ip_address(connection.laddr.ip).is_loopback
            with listening.socket_of(process.pid, connection.fd) as server:
                tied = server is not None and listening.on_loopback(server)
            tcp_servers[f"{' '.join(process.cmdline())}: {connection.laddr.ip}:{connection.laddr.port}"] = (
                private or tied
            )
    return tcp_servers


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return  # our own child, which subprocess reaps later
        time.sleep(0.01)


@contextlib.contextmanager
def cluster(folder: Path, settings: Settings | None = None) -> Iterator[LocalCluster]:
    """Run a cluster while the context lasts. At the end it and all processes of its pods are stopped; its
    state stays.

    Args:
        folder: folder of its state; created if absent.
        settings: how it runs.
    """
    local_cluster = LocalCluster(folder, settings or Settings())
    try:
        local_cluster.up()
        yield local_cluster
    finally:
        local_cluster.down()
