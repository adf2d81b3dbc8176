"""Processes of containers: found by ancestry and by mark, which each has in its environment; and their
memory, with each page counted once where it matters.
"""

import contextlib
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


def is_alive(pid: int, start: int) -> bool:
    """Whether the process with this id and start time (clock ticks) lives; the id alone may belong to another
    one by now."""
    try:
        process = psutil.Process(pid)
        return shim.start_ticks(pid) == start and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False


def marked(prefix: str) -> Iterator[psutil.Process]:
    """The living processes whose mark begins with `prefix` (a pod's uid, or a whole mark)."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            value = process.environ().get(MARK, "")
            if value == prefix or value.startswith(f"{prefix}/"):
                yield process


def kill_marked(prefix: str) -> int:
    """SIGKILL every process with that mark until none is left. Returns how many there were.

    Blocks as long as the kernel needs, at most a few seconds (a process in uninterruptible sleep remains).
    """
    deadline = time.monotonic() + _KILL_SECONDS
    seen: set[int] = set()
    while found := list(marked(prefix)):
        for process in found:
            seen.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=0.2)
        if time.monotonic() > deadline:
            break
    return len(seen)


_PAGE = os.sysconf("SC_PAGE_SIZE")
_PARENT_FIELD, _RESIDENT_FIELD = 1, 21
"""Positions in ``/proc/<pid>/stat`` after the command's name."""


@dataclass(frozen=True)
class ProcessSnapshot:
    """All processes at one moment, read once for all containers.

    Attributes:
        children: by process id.
        resident: resident bytes by process id, including shared pages.
    """

    children: dict[int, list[int]]
    resident: dict[int, int]

    @classmethod
    def take(cls) -> "ProcessSnapshot":
        """Read ``/proc``."""
        children: dict[int, list[int]] = {}
        resident: dict[int, int] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208 - twice a second: no Path for each process
            if name.isdigit():
                with contextlib.suppress(OSError):  # it has just ended
                    fields = (
                        Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
                    )
                    children.setdefault(int(fields[_PARENT_FIELD]), []).append(int(name))
                    resident[int(name)] = int(fields[_RESIDENT_FIELD]) * _PAGE
        return cls(children, resident)

    def over_limit(self, shim_pid: int, limit: float) -> bool:
        """Whether the processes below a shim use more than `limit` bytes.

        The sum of resident sizes is known and counts shared pages several times; only if it exceeds the
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
