"""Finding processes by ancestry and by mark. Every process of a container has its mark in its environment."""

import contextlib
import time
from collections.abc import Iterator

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
