"""Ends the processes of a test run that was killed: ``python -I -S tests/orphans.py PID VARIABLE=VALUE``.

A run starts this program beside it. Once the run has ended, however it did, this kills every process that
carries the run's mark in its environment, and the descendants of those: pods of the embedded cluster have an
environment of their own. It needs nothing but the standard library, so that it starts in milliseconds.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def main() -> None:
    """In the background, wait for the run's end and then end what it left."""
    run, mark = int(sys.argv[1]), sys.argv[2].encode()
    if os.fork():
        return
    os.setsid()  # neither a descendant of the run nor reached by its terminal's Ctrl-C
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(run)], [], [])
    while left := find_processes(mark):
        kill_processes(left)
        time.sleep(0.05)


def find_processes(mark: bytes) -> set[int]:
    """The living processes whose environment has the mark, but for this one."""
    return {pid for pid in _pids() if pid != os.getpid() and mark in _environment(pid) and _parent(pid)}


def kill_processes(found: set[int]) -> None:
    """Kill processes and their descendants. They are stopped first, so that none starts another meanwhile."""
    _send_signal(found, signal.SIGSTOP)
    children: dict[int, set[int]] = {}
    for pid in _pids():
        children.setdefault(_parent(pid), set()).add(pid)
    every, new = set(found), set(found)
    while new := {child for pid in new for child in children.get(pid, ())} - every:
        _send_signal(new, signal.SIGSTOP)
        every |= new
    _send_signal(every, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> list[bytes]:
    """A process's environment as it began; [] where there is none to read: another user's, a zombie's."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    """Its parent; 0 if it has ended."""
    try:
        state, parent = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return 0
    return 0 if state in "ZX" else int(parent)


def _send_signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


if __name__ == "__main__":
    main()
