"""The store without a cluster: a file."""

import os
from pathlib import Path


class FileStore:
    """A file, replaced by an atomic rename and flushed to disk.

    Args:
        path: the file; its folder must exist.
    """

    interval = 0.05
    capacity = 2**30

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        return str(self._path)

    def load(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, document: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
