"""A node's copies of the model in shared memory. The training process makes them between steps; the agent
persists them.

There are two slots. A slot consists of a data file, whose pages are reused, and a header file. The header is
removed before the data changes, and a new header is renamed into place when the data is complete. So a
process that dies in between leaves a slot without a header, and the other slot intact. The newest complete
copy is never overwritten.

Readers of a slot (the agent that persists it, a peer that copies it, a process that restores it) hold a
shared lock, and its writer an exclusive one. The kernel releases the locks of a process that dies.
"""

import contextlib
import fcntl
import mmap
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints.copying import Registrar
from edl_workflows.training.checkpoints.manifest import VariableLayout
from edl_workflows.training.checkpoints.slot_memory import SLOTS, NoMemoryError, SlotMemory

ABANDONED_SECONDS = 3600.0
"""Time for which the folder of a dead agent is kept: its container may restart and persist the copies."""
MAX_PARTS = 100_000
LOCK_SECONDS = 0.001
_PREFIX = "edl-"
_BELL = "bell"
_PEER = "peer"
_SHARED = "shared"
_AGENT_LOCK = "agent.lock"


class SnapshotStage(StrEnum):
    """The progress of a copy."""

    MEMORY = "memory"
    """Complete, in this node's memory."""
    SAVED = "saved"
    """Also on storage."""
    FAILED = "failed"
    """Could not be persisted, or was rejected by the master."""


class ModelSnapshot(BaseModel):
    """The header of a complete copy.

    Attributes:
        number: 1, 2, …; increases with each copy on the node.
        ticket: id of the master's ticket, with which the master has recorded the data position; "" for parts
            other than the chief's.
        version: cluster version that made the copy.
        step: global step of the copy.
        size: size in bytes.
        place: folder or URI of the checkpoints, where the copy is persisted as ``name``.
        name: name of the checkpoint.
        keep: number of checkpoints to keep there.
        part, parts: index of this part of the checkpoint, and number of parts.
        persist: whether the copy is persisted in any case, or only if the training process is lost.
        position: the data position from the master.
        variables: variables of the model, for the checkpoint's manifest.
        stage, error: progress of the copy, and why it failed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int = Field(ge=1, lt=2**63)
    ticket: str = Field(max_length=256)
    version: int = Field(ge=1, lt=2**63)
    step: int = Field(ge=0, lt=2**63)
    size: int = Field(ge=0, lt=2**63)
    place: str = Field(max_length=4096)
    name: str = Field(pattern=r"^checkpoint-[0-9]{12,19}-[0-9a-f]{8}$")
    keep: int = Field(ge=1)
    part: int = Field(default=0, ge=0, lt=MAX_PARTS)
    parts: int = Field(default=1, ge=1, le=MAX_PARTS)
    persist: bool = True
    position: Mapping[str, Any] | None = None
    variables: dict[str, VariableLayout] | None = None
    stage: SnapshotStage = SnapshotStage.MEMORY
    error: str = Field(default="", max_length=4096)

    @property
    def due(self) -> bool:
        """Whether it is waiting to be persisted."""
        return self.persist and self.stage is SnapshotStage.MEMORY

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint that the copy becomes when it is persisted."""
        return CheckpointRef(uri=f"{self.place.rstrip('/')}/{self.name}", step=self.step)


@dataclass(frozen=True)
class SnapshotDraft:
    """A copy that is being written.

    Attributes:
        bytes: buffer to write into; valid within `SnapshotFolder.writing`.
        number: number of the copy.
        commit: writes the header, which completes the copy.
    """

    bytes: memoryview
    number: int
    commit: Callable[[ModelSnapshot], None]


class SnapshotFolder:
    """The two slots of a node.

    Args:
        folder: an existing folder in shared memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memory = SlotMemory()

    @property
    def of_peer(self) -> "SnapshotFolder":
        """The copies that this node holds for another node."""
        return SnapshotFolder(self.folder / _PEER)

    @property
    def shared(self) -> bool:
        """Whether another node should also hold the newest copy."""
        return (self.folder / _SHARED).exists()

    def share(self) -> None:
        """Ask for replication: another node holds the newest copy of this one, and vice versa."""
        (self.folder / _SHARED).touch()
        self.ring()

    def whole(self) -> list[ModelSnapshot]:
        """The complete copies, oldest first."""
        copies = [snapshot for slot in self._slots if (snapshot := _header(slot)) is not None]
        return sorted(copies, key=lambda snapshot: snapshot.number)

    @property
    def newest(self) -> ModelSnapshot | None:
        """The newest complete copy."""
        return next(reversed(self.whole()), None)

    def find(self, number: int) -> ModelSnapshot | None:
        """The copy with a number; None if it was overwritten."""
        return next((snapshot for snapshot in self.whole() if snapshot.number == number), None)

    def reserve(self, size: int, registrar: Registrar | None = None) -> None:
        """Allocate memory for both slots before the first copy, so that no step has to wait for that.

        Args:
            size: bytes of a copy.
            registrar: the device that copies; None if the CPU copies.

        Raises:
            NoMemoryError: there is not enough shared memory.
        """
        for slot in self._slots:
            self._memory.map(slot, size, registrar)

    def release(self, seconds: float) -> None:
        """End the registrations of the slots' memory; see `SlotMemory.release`."""
        self._memory.release(seconds)

    @property
    def busy(self) -> bool:
        """Whether no copy can be made now, because the present content of the slot to overwrite is being read
        or waits to be persisted."""
        slot = self._target()
        with _locked(slot, "ab", fcntl.LOCK_EX) as file:
            return file is None or _is_due(slot)

    @contextlib.contextmanager
    def writing(self, size: int, registrar: Registrar | None = None) -> Iterator["SnapshotDraft | None"]:
        """A context with a slot for a new copy; None while the slot's present content is being read or waits
        to be persisted. `SnapshotDraft.commit` completes the copy.

        Args:
            size: bytes of the copy.
            registrar: the device that copies; None if the CPU copies.

        Raises:
            NoMemoryError: there is not enough shared memory.
        """
        slot = self._target()
        with _locked(slot, "ab", fcntl.LOCK_EX) as file:
            if file is None or _is_due(slot):
                yield None
                return
            newest = self.newest
            _header_of(slot).unlink(missing_ok=True)
            with memoryview(self._memory.map(slot, size, registrar))[:size] as view:
                yield SnapshotDraft(
                    view, newest.number + 1 if newest else 1, lambda header: self._commit(slot, header)
                )

    def _commit(self, slot: Path, header: ModelSnapshot) -> None:
        try:
            _put(slot, header)
        except OSError as error:
            raise NoMemoryError(f"{slot}: shared memory has no room for a copy's header: {error}") from error
        self.ring()

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[memoryview | None]:
        """The bytes of a copy, which don't change within the context; None if it was overwritten."""
        for slot in self._slots:
            while _holds(slot, number):
                with _locked(slot, "ab", fcntl.LOCK_SH) as file:
                    if file is not None and _holds(slot, number):
                        yield _view(slot)
                        return
                time.sleep(LOCK_SECONDS)  # its writer is about to release the lock, or to remove the header
        yield None

    def settle(self, number: int, stage: SnapshotStage, error: str = "") -> None:
        """Record the result of a copy. Call it within `reading`. If there is no room for the record, the copy
        is discarded."""
        for slot in self._slots:
            header = _header(slot)
            if header is not None and header.number == number:
                noted = header.model_copy(update={"stage": stage, "error": error[:4096]})
                try:
                    _put(slot, noted)
                except OSError:
                    # Remove the old header: with it the copy would be persisted again, and it takes up room.
                    with contextlib.suppress(OSError):
                        _header_of(slot).unlink()
                        _put(slot, noted)

    def ring(self) -> None:
        """Wake the agent, if there is one."""
        with contextlib.suppress(OSError):  # there is no listener, or the pipe is full of unread signals
            bell = os.open(self.folder / _BELL, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(bell, b"x")
            finally:
                os.close(bell)

    def listen(self) -> int:
        """A file descriptor that becomes readable after `ring`; the caller closes it."""
        bell = self.folder / _BELL
        with contextlib.suppress(FileExistsError):
            os.mkfifo(bell, 0o600)
        return os.open(bell, os.O_RDWR)

    @property
    def _slots(self) -> list[Path]:
        return [self.folder / f"slot-{index}" for index in range(SLOTS)]

    def _target(self) -> Path:
        """The slot to write next: one without a complete copy, else the one with the older copy."""
        headers = {slot: _header(slot) for slot in self._slots}
        return min(headers, key=lambda slot: header.number if (header := headers[slot]) else 0)


def node_folder(base: Path, job: str, node_type: str, node_id: int) -> Path:
    """The folder of a node's slots. It is the same for an agent that restarts in the same pod.

    Args:
        base: folder of shared memory.
        job: uid of the job.
        node_type: type of the node.
        node_id: id of the node; never reused.
    """
    return base / f"{_PREFIX}{job}-{node_type}-{node_id}"


def claim_folder(folder: Path) -> SnapshotFolder:
    """Create a private folder for a node's agent, or take over the folder of the node's previous agent.
    Abandoned folders of other nodes are removed.

    Raises:
        CheckpointError: it can't be created, or belongs to another user.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise CheckpointError(f"{folder}: belongs to another user: remove it")
        lock = os.open(folder / _AGENT_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(lock, fcntl.LOCK_EX):  # held until this process ends
            os.close(lock)
            raise CheckpointError(f"{folder}: another agent uses it")
        os.utime(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: no place for copies of the model: {error}") from error
    for other in folder.parent.glob(f"{_PREFIX}*"):
        if other != folder:
            _remove_if_abandoned(other)
    return SnapshotFolder(folder)


def _remove_if_abandoned(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another user's, or just removed
        status = folder.lstat()
        old = time.time() - status.st_mtime > ABANDONED_SECONDS
        if not old or status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
            return
        # Only an agent's folder has this lock; other programs may use the same prefix.
        with _locked(folder / _AGENT_LOCK, "rb+", fcntl.LOCK_EX) as lock:
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _header_of(slot: Path) -> Path:
    return slot.with_name(f"{slot.name}.json")


def _header(slot: Path) -> ModelSnapshot | None:
    """The header of a slot; None if the slot has no complete copy."""
    try:
        header = ModelSnapshot.model_validate_json(_header_of(slot).read_bytes())
        return header if slot.stat().st_size >= header.size else None
    except (OSError, ValidationError):
        return None


def _put(slot: Path, snapshot: ModelSnapshot) -> None:
    # Only the holder of the slot's lock writes this file. A file left by a killed writer is overwritten.
    fresh = slot.with_name(f"{slot.name}.new")
    try:
        fresh.write_text(snapshot.model_dump_json())
        fresh.replace(_header_of(slot))
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _is_due(slot: Path) -> bool:
    header = _header(slot)
    return header is not None and header.due


def _holds(slot: Path, number: int) -> bool:
    header = _header(slot)
    return header is not None and header.number == number


def _view(slot: Path) -> memoryview:
    header = _header(slot)
    size = header.size if header is not None else 0
    # Open the file separately: a mapping keeps a duplicate of its descriptor, and with it the lock.
    with slot.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), max(1, size), access=mmap.ACCESS_READ))[:size]


@contextlib.contextmanager
def _locked(path: Path, mode: str, kind: int) -> Iterator[IO[bytes] | None]:
    """An open file whose lock is held within the context; None if another process holds it."""
    with path.open(mode) as file:
        if not _lock(file.fileno(), kind):
            yield None
            return
        try:
            yield file
        finally:
            # Closing is not enough: a process forked meanwhile shares the open file.
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
