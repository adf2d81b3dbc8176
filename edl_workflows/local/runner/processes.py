"""Finds processes of containers, by ancestry and by their mark, and measures their memory.

The mark is a variable in the environment, and a number as a resource limit: a program may overwrite its
environment, as `setproctitle` does, but nothing sets the limit for processes of real-time scheduling, whose
number is too large to matter. Both are inherited.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl_workflows.local.runner import shim

MARK = "EDL_CONTAINER_ID"
"""Environment variable of every process of a container: ``<pod uid>/<container>/<attempt>``."""
_KILL_SECONDS = 5.0
_MARK_BITS = 31
"""Bits of a mark's number for the pod, and for the attempt."""
_LIMIT = "Max realtime timeout"
"""The line of `shim.mark_process`'s limit in ``/proc/<pid>/limits``."""


def is_alive(pid: int, start: int) -> bool:
    """Whether the process with this id and start time (clock ticks) exists. The id alone is not enough: it
    may have been reused."""
    try:
        process = psutil.Process(pid)
        return shim.start_ticks(pid) == start and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False


def marked_processes(prefix: str) -> Iterator[psutil.Process]:
    """The running processes whose mark begins with `prefix` (a pod's uid, or a whole mark)."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            value = process.environ().get(MARK, "")
            if (
                value == prefix
                or value.startswith(f"{prefix}/")
                or (not value and _is_limited(process, prefix))
            ):
                yield process


def mark_number(mark: str) -> int:
    """The number that stands for a mark; its upper half stands for the part before the first slash."""
    parts = mark.partition("/")
    pod, attempt = (hashlib.sha256(part.encode()).digest() for part in (parts[0], parts[2]))
    number = 1
    for digest in (pod, attempt):
        number = (number << _MARK_BITS) | (int.from_bytes(digest[:8]) % 2**_MARK_BITS)
    return number


def _is_limited(process: psutil.Process, prefix: str) -> bool:
    """Whether the process has the number of a mark that begins with `prefix`."""
    for line in Path(f"/proc/{process.pid}/limits").read_text().splitlines():
        if line.startswith(_LIMIT):
            value, number = line.removeprefix(_LIMIT).split()[0], mark_number(prefix)
            shift = 0 if "/" in prefix else _MARK_BITS
            return value.isdecimal() and int(value) >> shift == number >> shift
    return False


def kill_marked(prefix: str) -> int:
    """Send SIGKILL to all processes with that mark until none is left. Returns how many there were.

    Blocks until they have ended, but at most a few seconds: a process in uninterruptible sleep remains.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    seen: set[int] = set()
    while processes := list(marked_processes(prefix)):
        for process in processes:
            seen.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=0.2)
        if time.monotonic() > deadline:
            break
    return len(seen)


_PAGE = os.sysconf("SC_PAGE_SIZE")
_PARENT_FIELD, _RESIDENT_FIELD = 1, 21
"""Indices of fields in ``/proc/<pid>/stat``, counted after the command's name."""


@dataclass(frozen=True)
class ProcessSnapshot:
    """All processes at one moment, read once for all containers.

    Attributes:
        children: ids of the child processes, by process id.
        resident: resident memory in bytes, including shared pages, by process id.
    """

    children: dict[int, list[int]]
    resident: dict[int, int]

    @classmethod
    def take(cls) -> "ProcessSnapshot":
        """Read ``/proc``."""
        children: dict[int, list[int]] = {}
        resident: dict[int, int] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208 - twice a second; a Path for each process is too slow
            if name.isdigit():
                with contextlib.suppress(OSError):  # the process has just ended
                    fields = (
                        Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
                    )
                    children.setdefault(int(fields[_PARENT_FIELD]), []).append(int(name))
                    resident[int(name)] = int(fields[_RESIDENT_FIELD]) * _PAGE
        return cls(children, resident)

    def over_limit(self, shim_pid: int, limit: float) -> bool:
        """Whether the descendants of a shim use more than `limit` bytes.

        The sum of the resident sizes is cheap but counts shared pages several times. Only if it exceeds the
        limit, the proportional sizes are read, which count each page once.
        """
        tree = list(self.below(shim_pid))
        return sum(self.resident[pid] for pid in tree) > limit and sum(map(_proportional, tree)) > limit

    def below(self, pid: int) -> Iterator[int]:
        """All descendants of a process."""
        for child in self.children.get(pid, ()):
            yield child
            yield from self.below(child)


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
