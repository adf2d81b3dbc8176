"""A lock that ends with its process, however that ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from edl_workflows.exceptions import ConflictError

LOCK_FILE = "cluster.lock"
"""Held by the process that serves a folder."""


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while the context lasts.

    Raises:
        ConflictError: another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(f"{path.parent}: a cluster runs on this folder already") from error
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    if not path.exists():
        return False
    try:
        with hold(path):
            return False
    except ConflictError:
        return True
