"""What of the machine belongs to the cluster: namespaces for processes, mounts and network, and a cgroup.

Every program of the cluster and every pod lives below one process, in the namespaces that it holds open. When
that process dies, the kernel ends all of them and takes their mounts, interfaces and packet rules with them.
So a bed can be cleared away whatever happened to it, and two beds do not meet.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.bed.process import BedError, Daemon
from tests.cluster.bed.wait import until

_CGROUPS = Path("/sys/fs/cgroup")
_PRIVATE = ("/run/netns", "/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
"""Folders that the node's programs write to whatever they are told: they get empty ones of their own."""
_TUNABLES = {
    "vm/overcommit_memory": 1,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What kubelet would set for the whole machine. It finds its values, in files laid over the real ones."""
_CPU_WEIGHTS = {"cpu.shares": 10_240, "cpu.weight": 1_000}
"""The weight of the pods' cgroup, of version 1 or 2: ten times the default. With the default, all pods of the
cluster together get as much of a busy machine as one other process."""


@dataclass(frozen=True)
class Network:
    """Addresses of one bed: 10.<number>.0.0/16, reached from the machine through one pair of interfaces.

    Attributes:
        number: tells beds apart that run at the same time; 1-254.
    """

    number: int

    @property
    def interface(self) -> str:
        """The machine's end of the pair."""
        return f"edl-cluster{self.number}"

    @property
    def machine(self) -> str:
        """The machine as pods see it."""
        return f"10.{self.number}.64.1"

    @property
    def node(self) -> str:
        """The node, and on it the API server and the name server."""
        return f"10.{self.number}.64.2"

    @property
    def services(self) -> str:
        """Where Services get their addresses."""
        return f"10.{self.number}.0.0/18"

    @property
    def dns(self) -> str:
        """The name server's Service."""
        return f"10.{self.number}.0.10"

    @property
    def pods(self) -> str:
        """Where pods get their addresses."""
        return f"10.{self.number}.128.0/17"


@dataclass(frozen=True)
class Node:
    """The namespaces and the cgroup of a bed.

    Attributes:
        folder: the bed's.
        network: the bed's.
        pause: the program that holds the namespaces open and reaps what is orphaned.
    """

    folder: Path
    network: Network
    pause: Path

    @property
    def cgroup(self) -> str:
        """The cgroup that all pods are below."""
        return self.network.interface

    @property
    def enter(self) -> tuple[str, ...]:
        """Command prefix that takes a program into the node's namespaces."""
        return ("nsenter", f"--target={self._holder.pid}", "--mount", "--net", "--pid")

    @property
    def _holder(self) -> Daemon:
        unshare = ("unshare", "--mount", "--propagation=slave", "--net", "--pid", "--fork", "--mount-proc")
        return Daemon("node", (str(self.pause), str(self.folder)), self.folder, enter=unshare)

    def create(self) -> None:
        """Make the namespaces, the network and the cgroup.

        Raises:
            BedError: one of them is there already: another bed has this network's number.
        """
        if Path("/sys/class/net", self.network.interface).exists():
            raise BedError(
                f"network {self.network.number} is another test bed's; end that one, or choose another "
                "--network"
            )
        self._holder.start()
        for root in self._cgroup_roots():
            cgroup = root / self.cgroup
            cgroup.mkdir(exist_ok=True)
            for name, weight in _CPU_WEIGHTS.items():
                if (cgroup / name).exists():
                    (cgroup / name).write_text(str(weight))
        self._mount()
        self._connect()

    def _mount(self) -> None:
        for folder in _PRIVATE:
            Path(folder).mkdir(parents=True, exist_ok=True)
            _run(*self.enter, "mount", "-t", "tmpfs", "tmpfs", folder)
        tunables = self.folder / "tunables"
        tunables.mkdir()
        for name, value in _TUNABLES.items():
            file = tunables / name.replace("/", ".")
            file.write_text(f"{value}\n")
            _run(*self.enter, "mount", "--bind", str(file), f"/proc/sys/{name}")

    def _connect(self) -> None:
        network, link = self.network, self.network.interface
        _run(
            "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid)
        )
        _run("ip", "address", "add", f"{network.machine}/30", "dev", link)
        _run("ip", "link", "set", link, "up")
        inside = (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "address", "add", f"{network.node}/30", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("ip", "route", "add", "default", "via", network.machine),
            ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
        )
        for command in inside:
            _run(*self.enter, *command)
        _run("ip", "route", "add", f"10.{network.number}.0.0/16", "via", network.node)

    def destroy(self) -> None:
        """End every process of the cluster and remove what was made for it; nothing to do is no error."""
        self._holder.stop(kill=True)
        if Path("/sys/class/net", self.network.interface).exists():
            # The kernel takes namespaces apart in the background; the pair may go while we ask for it.
            subprocess.run(["ip", "link", "delete", self.network.interface], capture_output=True)
        for root in self._cgroup_roots():
            until(lambda root=root: _removed(root / self.cgroup), f"cgroup {root / self.cgroup} is empty")  # type: ignore[misc]

    def _cgroup_roots(self) -> list[Path]:
        """One in each hierarchy of version 1; the only one of version 2."""
        return [_CGROUPS] if (_CGROUPS / "cgroup.controllers").exists() else [*_CGROUPS.iterdir()]


def _removed(cgroup: Path) -> bool:
    """Remove a cgroup and those below; False while processes are in one."""
    try:
        for folder, _, _ in os.walk(cgroup, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True


def _run(*command: str) -> None:
    program = shutil.which(command[0])
    done = subprocess.run([program or command[0], *command[1:]], capture_output=True, text=True)
    if done.returncode:
        raise BedError(f"{' '.join(command)}: {done.stderr.strip()}")
