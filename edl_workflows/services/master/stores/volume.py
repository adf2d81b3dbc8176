"""The store on a volume that all masters of a job mount: files.

Each snapshot is a file of its own, a head in the first line and then the document. It gets its name once it
is on the disk; the snapshot before stays. A master that loads the state takes the next *term*, with a file
that only one can create: what an earlier master still writes has a lower term, so it is not used.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from edl_workflows.core.exceptions import ConflictError, InvalidError, UnavailableError
from edl_workflows.services.master.stores.port import SnapshotHead, StateStore, checksum_of, parse_head

_NOTE = "that of files "
"""Begins the format of a note, which names the files of the state."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, order=True)
class _Version:
    """Order of the snapshots. Number 0 is no snapshot: it takes the term."""

    term: int
    number: int


class VolumeStore:
    """Files ``<path>.<term>.<number>``.

    Args:
        path: without term and number; its folder is created if it does not exist.
        default: the store that the job would use otherwise. The state in it, if any, is moved to the files; a
            note stays, so that no master begins the job anew without the volume.
    """

    interval = 1.0
    capacity = 2**30

    def __init__(self, path: Path, default: StateStore) -> None:
        self._path = path
        self._default = default
        self._note = json.dumps({"format": f"{_NOTE}{path}.*"}).encode()
        self._newest = _Version(0, 0)
        """What this store has written last."""
        self._before: _Version | None = None
        """The snapshot before, or the one that was loaded."""

    @property
    def place(self) -> str:
        return f"{self._path}.*"

    def load(self) -> bytes | None:
        elsewhere = self._default.load()
        noted = _noted_files(elsewhere) if elsewhere is not None else ""
        with self._failures():
            self._take_term()
            # A master without the volume wrote a state after that of the volume, if there is any.
            document = elsewhere if noted is None else self._load_newest()
        if document is None and noted:
            raise InvalidError(
                f"{self._default.place}: the state is in {noted}, and none is in {self.place}: mount the "
                "volume that has it, or empty the ConfigMap's state to begin the job anew"
            )
        if document is not None and noted is None:
            self.save(document)
        if elsewhere != self._note:
            self._default.save(self._note)
        return document

    def _load_newest(self) -> bytes | None:
        snapshots = [version for version in self._versions() if version.number]
        for version in snapshots:
            document = self._read(version)
            if document is not None:
                self._before = version
                return document
            log.warning("a stored state is damaged; the one before is used", file=str(self._file(version)))
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
        with self._failures():
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

    def _take_term(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            term = max((version.term for version in self._versions()), default=0) + 1
            self._newest = _Version(term, 0)
            with contextlib.suppress(FileExistsError):
                self._file(self._newest).touch(exist_ok=False)
                self._flush_folder()
                return

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
        self._flush_folder()

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

    def _flush_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise what the file system refuses as UnavailableError."""
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"{self.place}: the state can't be kept there: {error}") from error


def _noted_files(document: bytes) -> str | None:
    """The files that a note in the default store names; None if the document is a state."""
    with contextlib.suppress(ValueError):
        noted = json.loads(document)
        if isinstance(noted, dict) and str(noted.get("format")).startswith(_NOTE):
            return str(noted["format"]).removeprefix(_NOTE)
    return None
