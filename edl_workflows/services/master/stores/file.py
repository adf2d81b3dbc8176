"""The store without a cluster: a file, and what stores in files have in common.

The head of the document is in a file of its own, so that the version before, which knows no heads, still
reads the document. The head is replaced first. It names the very file that its document is in. Another file,
which was there before or which somebody else has put there, has no checksum.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.services.master.stores.port import SnapshotHead, checksum_of, parse_head


@contextlib.contextmanager
def map_file_errors(place: str) -> Iterator[None]:
    """Raise what the file system refuses as UnavailableError."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{place}: the state can't be kept there: {error}") from error


def flush_folder(folder: Path) -> None:
    """Return when renamed and new files of a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileHead(SnapshotHead):
    """The head beside the file.

    Attributes:
        inode, modified: of the file with the document; nanoseconds.
    """

    inode: int
    modified: int


class FileStore:
    """A file, replaced by an atomic rename and flushed to disk. For one master.

    Args:
        path: the file; its folder must exist.
    """

    interval = 0.05
    capacity = 2**30

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head_path = path.with_name(f"{path.name}.head")

    @property
    def place(self) -> str:
        return str(self._path)

    def load(self) -> bytes | None:
        with map_file_errors(self.place):
            try:
                document, status = self._path.read_bytes(), self._path.stat()
            except FileNotFoundError:
                return None
            head = self._read_head()
        is_named = head is not None and (head.inode, head.modified) == (status.st_ino, status.st_mtime_ns)
        if head is not None and is_named and not head.matches(document):
            raise InvalidError(
                f"{self.place}: the state is not the one that the master wrote, by its checksum: put that "
                f"back, remove {self._head_path} to use the state as it is, or remove both to begin the job "
                "anew"
            )
        return document

    def _read_head(self) -> FileHead | None:
        with contextlib.suppress(FileNotFoundError):
            return parse_head(FileHead, self._head_path.read_bytes(), self.place)
        return None

    def save(self, document: bytes) -> None:
        if len(document) > self.capacity:
            raise InvalidError(
                f"{self.place}: the state has {len(document)} bytes; at most {self.capacity} fit"
            )
        with map_file_errors(self.place):
            fresh = self._path.with_suffix(".new")
            with fresh.open("wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            self._write_head(document, fresh.stat())
            fresh.replace(self._path)
            flush_folder(self._path.parent)

    def _write_head(self, document: bytes, status: os.stat_result) -> None:
        head = FileHead(checksum=checksum_of(document), inode=status.st_ino, modified=status.st_mtime_ns)
        fresh = self._head_path.with_suffix(".head-new")
        fresh.write_text(head.model_dump_json(exclude={"writer", "parts"}))
        fresh.replace(self._head_path)
