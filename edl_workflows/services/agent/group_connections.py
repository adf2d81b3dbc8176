"""Whether the processes of a training program meet those of other nodes: whether each worker trains a copy of
the model of its own, which nothing combines.

A program that does not use the library forms its group from its environment, by connections to the addresses
in it. Those are seen in ``/proc``; a program that is still preparing opens them only later. A wrong "yes"
would be a false alarm, a wrong "no" is only a missing one: in doubt the answer is neither.
"""

import contextlib
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP, ProgramText
from edl_workflows.core.kubernetes import names
from edl_workflows.services.agent.process_tree import process_tree
from edl_workflows.services.agent.processes import plain_script
from edl_workflows.training.program import read_program

LOOK_SECONDS = 1.0
FIRST_LOOK_SECONDS = 0.2
"""Pause between looks at a program that is younger than `YOUNG_SECONDS`: it may end soon."""
YOUNG_SECONDS = 30.0
MEET_SECONDS = 300.0
"""How long a program may prepare, with its framework loaded, before it meets the others."""
MIN_LOOKS = 5
"""So often a program that has ended must have been seen with its framework loaded, and alone."""

_FRAMEWORK = re.compile(rb"/lib(torch|tensorflow)[\w-]*\.so|_pywrap_tensorflow|/jaxlib/|xla_extension")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LOCAL, _REMOTE, _INODE = 1, 2, 9
"""Columns of ``/proc/net/tcp``."""


@dataclass(frozen=True)
class TcpConnection:
    """A TCP socket of a process; it may be listening, or still connecting."""

    port: int
    remote_host: str
    remote_port: int


def read_connections(pids: Sequence[int], proc: Path = Path("/proc")) -> Iterator[TcpConnection]:
    """The TCP sockets of processes, which share a network namespace."""
    inodes = {inode for pid in pids for inode in _socket_inodes(proc / str(pid) / "fd")}
    if inodes:
        yield from _read_tables(proc / str(pids[0]) / "net", inodes)


def _read_tables(folder: Path, inodes: set[str] | None = None) -> Iterator[TcpConnection]:
    """The TCP sockets of a network namespace; with `inodes` only those. Sockets that were closed less than a
    minute ago, which the kernel keeps for late packets, have no inode of their own."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (folder / table).read_text().splitlines()[1:]:
                columns = line.split()
                if inodes is None or columns[_INODE] in inodes:
                    _, port = _parse_address(columns[_LOCAL])
                    yield TcpConnection(port, *_parse_address(columns[_REMOTE]))


def _socket_inodes(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process has ended
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if match := _SOCKET.fullmatch(str(entry.readlink())):
                    yield match[1]


def _parse_address(text: str) -> tuple[str, int]:
    """An address as the kernel writes it: words of the machine's byte order, here little-endian."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), int(port, 16)


def read_text(command: Sequence[str], environ: Mapping[str, str]) -> ProgramText | None:
    """The text of a node's program: it travels with the job, or is a script in the image. None if it is not
    known."""
    try:
        if environ.get(names.ENV_PROGRAM):
            return ProgramText(read_program(environ))
        script = Path(plain_script(command))
        if script.suffix:
            return ProgramText(TrainingProgram.of_script(script.name, script.read_text(encoding="utf-8")))
    except (EdlError, OSError, ValueError, RecursionError):  # then only its connections are judged
        return None
    return None


class GroupConnections:
    """Watches whether a program meets the other members of its version.

    Args:
        pid: the program's process; its descendants belong to it.
        own: address at which the others reach this node in the version.
        others: addresses of the other members.
        text: the program's text, if it is known.
        proc: where procfs is mounted.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pid: int,
        own: str,
        others: Sequence[str],
        text: ProgramText | None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid = pid
        self._own_port = _port(own)
        self._others = {(host, int(port)) for host, _, port in (other.rpartition(":") for other in others)}
        self._hosts: dict[str, str] = {}
        self._text = text
        self._proc = proc
        self._clock = clock
        self._started_at = clock()
        self._closed = threading.Event()
        self._met = False
        self._loaded_at: float | None = None
        self._looks = 0

    @property
    def met(self) -> bool:
        """Whether the program opened its address for the others, or a connection to one of them."""
        return self._met

    def start(self, report: Callable[[], None] = lambda: None) -> Self:
        """Look at the program's processes again and again, in a thread, until it has met the others or
        ended. `report` is called after each look."""
        threading.Thread(target=self._watch, args=(report,), name="group", daemon=True).start()
        return self

    def _watch(self, report: Callable[[], None]) -> None:
        while self._look_and_report(report):
            young = self._clock() - self._started_at < YOUNG_SECONDS
            if self._closed.wait(FIRST_LOOK_SECONDS if young else LOOK_SECONDS):
                return

    def close(self) -> None:
        """Stop to look."""
        self._closed.set()

    def _look_and_report(self, report: Callable[[], None]) -> bool:
        goes_on = self.look()
        report()
        return goes_on

    def look(self) -> bool:
        """Look at the program's processes once; returns whether there is more to see."""
        pids = [*process_tree(self._pid, self._proc)]
        if not pids:
            self._look_back()
        if not pids or self._met:
            return False
        if self._loaded_at is None and any(self._has_framework(pid) for pid in pids):
            self._loaded_at = self._clock()
        self._looks += self._loaded_at is not None
        if any(map(self._leads_to_group, read_connections(pids, self._proc))):
            self._met = True  # never False again: another thread may look back meanwhile
        return not self._met

    def trains_own_copy(self, code: int | None = None) -> bool | None:
        """Whether the program trains a model of its own; None if that is not known.

        Args:
            code: exit code of the program, if it has ended.
        """
        text = self._text
        if code is not None:
            self._look_back()
        if self._met:
            return False
        if text is not None and (text.uses_library or text.never_trains):
            return None
        if text is not None and text.warning == NO_GROUP:
            return True
        if self._loaded_at is None:
            return None
        late = self._clock() - self._loaded_at > MEET_SECONDS
        return True if late or (code == 0 and self._looks >= MIN_LOOKS) else None

    def _look_back(self) -> None:
        """Look, after the program's end, for connections of a group that was closed since the last look."""
        if any(map(self._has_address, _read_tables(self._proc / "net"))):
            self._met = True

    def _leads_to_group(self, connection: TcpConnection) -> bool:
        remote = connection.remote_host
        return self._has_address(connection) or (
            not _is_loopback(remote) and any(remote == self._address(host) for host, _ in self._others)
        )

    def _has_address(self, connection: TcpConnection) -> bool:
        """Whether one of its ends is an address at which a member of the version is reached."""
        remote = (connection.remote_host, connection.remote_port)
        return connection.port == self._own_port or any(
            remote == (self._address(host), port) for host, port in self._others
        )

    def _has_framework(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return bool(_FRAMEWORK.search((self._proc / str(pid) / "maps").read_bytes()))
        return False

    def _address(self, host: str) -> str:
        """The IP address of a host; "" while its name has none."""
        if host not in self._hosts:
            try:
                self._hosts[host] = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
            except OSError:
                return ""
        return self._hosts[host]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback
