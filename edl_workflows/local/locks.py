"""A file lock that is released whenever its process ends, even if it crashes, and that names its holder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.local.runner.processes import is_alive
from edl_workflows.local.runner.shim import start_ticks

LOCK_FILE = "cluster.lock"
"""Lock of the process that serves a folder."""


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while the context lasts.

    Raises:
        ConflictError: another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(f"{path.parent}: a cluster already runs in this folder") from error
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {start_ticks('self')}".encode())
        yield
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> int | None:
    """The id of the process that holds the lock; None if there is none."""
    try:
        pid, start = path.read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if is_alive(int(pid), int(start)) else None
