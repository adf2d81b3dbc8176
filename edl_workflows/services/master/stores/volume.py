"""The store on a volume that all masters of a job mount: files.

Each snapshot is a file of its own, a head in the first line and then the document. It gets its name once it
is on the disk; the snapshot before stays. A master that loads the state takes the next *term*, with a file
that only one can create: what an earlier master still writes has a lower term, so it is not used.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import structlog

from edl_workflows.core.exceptions import ConflictError, InvalidError
from edl_workflows.services.master.stores.file import flush_folder, map_file_errors
from edl_workflows.services.master.stores.noted import NotedStore
from edl_workflows.services.master.stores.port import SnapshotHead, StateStore, checksum_of, parse_head

log = structlog.get_logger(__name__)


@dataclass(frozen=True, order=True)
class _Version:
    """Order of the snapshots. Number 0 is no snapshot: it takes the term."""

    term: int
    number: int


class VolumeStore(NotedStore):
    """Files ``<path>.<term>.<number>``.

    Args:
        path: without term and number; its folder is created if it does not exist.
        default: see `NotedStore`.
    """

    interval = 1.0
    capacity = 2**30
    kind = "files"
    remedy = "mount the volume that has it"

    def __init__(self, path: Path, default: StateStore) -> None:
        super().__init__(default)
        self._path = path
        self._newest = _Version(0, 0)
        """What this store has written last."""
        self._before: _Version | None = None
        """The snapshot before, or the one that was loaded."""

    @property
    def place(self) -> str:
        return f"{self._path}.*"

    @property
    def _address(self) -> str:
        return self.place

    def _claim(self) -> None:
        with map_file_errors(self.place):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                term = max((version.term for version in self._versions()), default=0) + 1
                self._newest = _Version(term, 0)
                with contextlib.suppress(FileExistsError):
                    self._file(self._newest).touch(exist_ok=False)
                    flush_folder(self._path.parent)
                    return

    def _read_newest(self) -> bytes | None:
        with map_file_errors(self.place):
            snapshots = [version for version in self._versions() if version.number]
            for version in snapshots:
                document = self._read(version)
                if document is not None:
                    self._before = version
                    return document
                log.warning(
                    "a stored state is damaged; the one before is used", file=str(self._file(version))
                )
        if snapshots:
            raise InvalidError(
                f"{self._file(snapshots[0])}: the state is damaged, by its checksum, and so is the one "
                "before: put back what the master wrote there"
            )
        return None

    def save(self, document: bytes) -> None:
        if len(document) > self.capacity:
            raise InvalidError(
                f"{self.place}: the state has {len(document)} bytes; at most {self.capacity} fit"
            )
        with map_file_errors(self.place):
            self._check_term()
            version = _Version(self._newest.term, self._newest.number + 1)
            self._write(version, document)
            # Another master that has taken the next term before this look may not have read this state.
            self._check_term()
            self._before = self._newest if self._newest.number else self._before
            self._newest = version
            for old in self._versions():
                if old < version and old != self._before:
                    self._file(old).unlink(missing_ok=True)

    def _check_term(self) -> None:
        if any(version.term > self._newest.term for version in self._versions()):
            raise ConflictError(f"{self.place}: another master of this job has taken it over; this one ends")

    def _write(self, version: _Version, document: bytes) -> None:
        head = SnapshotHead(checksum=checksum_of(document))
        fresh = self._path.with_name(f"{self._path.name}.new-{version.term}")
        with fresh.open("wb") as file:
            file.write(head.model_dump_json(exclude={"writer", "parts"}).encode() + b"\n" + document)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file(version))
        flush_folder(self._path.parent)

    def _read(self, version: _Version) -> bytes | None:
        """The document; None if it is damaged."""
        line, _, document = self._file(version).read_bytes().partition(b"\n")
        head = parse_head(SnapshotHead, line, str(self._file(version)))
        return document if head is not None and head.matches(document) else None

    def _versions(self) -> list[_Version]:
        """Of the files that exist, the newest first."""
        pattern = re.compile(re.escape(self._path.name) + r"\.(\d+)\.(\d+)")
        matches = (pattern.fullmatch(file.name) for file in self._path.parent.iterdir())
        return sorted((_Version(int(m[1]), int(m[2])) for m in matches if m), reverse=True)

    def _file(self, version: _Version) -> Path:
        return self._path.with_name(f"{self._path.name}.{version.term}.{version.number}")
