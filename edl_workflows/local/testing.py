"""A running embedded cluster for tests: a process of its own with its state in a given folder."""

import contextlib
import ipaddress
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from edl_workflows.exceptions import UnavailableError
from edl_workflows.kube.connect import Cluster
from edl_workflows.local import daemon
from edl_workflows.local.runner import listening, processes

STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Settings:
    """How the cluster runs.

    Attributes:
        cpu, memory, pods_per_core: capacity of the node; generous, so that tests of many pods fit anywhere.
        back_off: first pause before a restart, in seconds.
        grace: seconds that pods get when the cluster goes down.
        controller: whether it runs the controller, too.
        di_server: whether it runs the DI server, too.
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
    """The embedded cluster of a folder.

    Attributes:
        folder: its state, which survives `kill` and `down`.
        settings: how it runs.
    """

    folder: Path
    settings: Settings = field(default_factory=Settings)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    def up(self) -> None:
        """Start it, or find it running.

        Raises:
            UnavailableError: it did not start.
        """
        daemon.up(daemon.DaemonStart(self.folder, self.settings.arguments()))

    def kill(self) -> None:
        """SIGKILL its process, as a crash would; pods' processes go on."""
        found = daemon.find(self.folder)
        if found is None:
            raise UnavailableError(f"no cluster runs on {self.folder}")
        os.kill(found.pid, signal.SIGKILL)
        _await_end(found.pid)

    def down(self) -> None:
        """Stop it and everything that runs in it."""
        daemon.down(self.folder, seconds=STOP_SECONDS)

    def client(self, namespace: str = "default") -> Cluster:
        """A handle with the administrator's rights."""
        return Cluster.from_kubeconfig(self.kubeconfig).in_namespace(namespace)


def servers(folder: Path) -> dict[str, bool]:
    """The TCP servers in the pods of a cluster: who listens where, and whether only processes of this machine
    can connect.

    Args:
        folder: the cluster's.
    """
    found: dict[str, bool] = {}
    for uid in daemon.pod_uids(folder):
        for process in processes.marked(uid):
            with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                found |= _servers_of(process)
    return found


def _servers_of(process: psutil.Process) -> dict[str, bool]:
    found = {}
    for one in process.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN:
            private = ipaddress.ip_address(one.laddr.ip).is_loopback
            with listening.socket_of(process.pid, one.fd) as server:
                tied = server is not None and listening.on_loopback(server)
            found[f"{' '.join(process.cmdline())}: {one.laddr.ip}:{one.laddr.port}"] = private or tied
    return found


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return  # a child of ours that subprocess reaps later
        time.sleep(0.01)


@contextlib.contextmanager
def cluster(folder: Path, settings: Settings | None = None) -> Iterator[LocalCluster]:
    """A running cluster; at the end it and all its pods' processes are gone, its state stays.

    Args:
        folder: of its state; made if absent.
        settings: how it runs.
    """
    found = LocalCluster(folder, settings or Settings())
    try:
        found.up()
        yield found
    finally:
        found.down()
