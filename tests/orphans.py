"""Ends the processes of a test run that was killed: ``python -I -S tests/orphans.py PID NUMBER``.

A run starts this program beside it. Once the run has ended, however it did, this kills every process that
carries the run's mark: a resource limit, which all processes inherit and none overwrites, as some do with
their environment. It needs nothing but the standard library, so that it starts in milliseconds.
"""

import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LIMIT = "Max resident set"


def main() -> None:
    """In the background, wait for the run's end and then end what it left."""
    run, mark = int(sys.argv[1]), int(sys.argv[2])
    if os.fork():
        return
    os.setsid()  # neither a descendant of the run nor reached by its terminal's Ctrl-C
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(run)], [], [])
    while left := find_processes(mark):
        kill_processes(left)
        time.sleep(0.05)


def choose_mark() -> int:
    """A new mark for this process: a limit of its resident memory, which Linux keeps but does not enforce.
    The soft limit can't be above the hard one, so the mark of a run within a run is lower."""
    limits = resource.getrlimit(resource.RLIMIT_RSS)
    most = min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=2**62)
    return most - 1 - int.from_bytes(os.urandom(5))


def mark_process(mark: int, *, keep_outer: bool = False) -> None:
    """Let this process, and all that it starts, carry a mark, as the soft limit: a daemon that is to outlive
    the run can raise that again without rights (`tests.cluster.bed.process`).

    Args:
        mark: the mark.
        keep_outer: keep also the mark that this process carries already, as the hard limit. Workers of xdist
            so keep the mark of their run.
    """
    outer, hard = resource.getrlimit(resource.RLIMIT_RSS)
    resource.setrlimit(resource.RLIMIT_RSS, (mark, outer if keep_outer else hard))


def find_processes(mark: int) -> set[int]:
    """The living processes with the mark, but for this one."""
    return {pid for pid in _pids() if pid != os.getpid() and mark in _marks_of(pid) and _is_alive(pid)}


def kill_processes(found: set[int]) -> None:
    """Kill processes. They are stopped first, so that none starts another meanwhile."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _marks_of(pid: int) -> set[int]:
    """A process's marks: its soft and its hard limit."""
    try:
        limits = (_PROC / str(pid) / "limits").read_text()
    except OSError:
        return set()
    return {int(limit) for limit in limits.partition(_LIMIT)[2].split()[:2] if limit.isdecimal()}


def _is_alive(pid: int) -> bool:
    try:
        state = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


if __name__ == "__main__":
    main()
