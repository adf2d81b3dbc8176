"""A node's copies of the model in shared memory: made by the training process in the step, persisted by the agent.

Two slots. A slot is a file of bytes, whose pages are kept and written again, and a header beside it. The header is taken
away before the bytes change and put in place, by a rename, when they are all there: a process that dies in between leaves
a slot without a header, and the other slot as it was. The newest whole copy is never written over.

Who reads a slot (the agent that persists it, a peer that copies it, a process that restores it) holds a shared lock; who
writes it holds an exclusive one. The kernel frees the locks of a process that dies.
"""

import contextlib
import errno
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

from edl_workflows.agent.layout import VariableLayout
from edl_workflows.exceptions import CheckpointError
from edl_workflows.protocol.cluster import CheckpointRef

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder for this user alone is made in it
ABANDONED_SECONDS = 3600.0
"""A folder whose agent is gone stays so long: its container may be started again and persist what is in it."""
SLOTS = 2
LOCK_SECONDS = 0.001
_PREFIX = "edl-"
_BELL = "bell"
_PEER = "peer"
_SHARED = "shared"
_AGENT_LOCK = "agent.lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


class NoMemoryError(CheckpointError):
    """Shared memory has no room for a copy."""


class Stage(StrEnum):
    """How far a copy has come."""

    MEMORY = "memory"
    """Whole, in this node's memory."""
    SAVED = "saved"
    """It stands on storage, too."""
    FAILED = "failed"
    """It could not be persisted, or the master did not want it."""


class Snapshot(BaseModel):
    """The header of a whole copy.

    Attributes:
        number: 1, 2, …; a later copy of the same node has a higher one.
        ticket: of the master, who remembers the data position that belongs to it.
        version: cluster version that made it.
        step: global step at which it was made.
        size: bytes.
        place: the checkpoints' folder or URI, to which it is persisted under ``name``.
        name: of the checkpoint.
        keep: checkpoints that stay there.
        persist: whether it is persisted in any case; else only if the training process is lost.
        position: the data position as the master said it.
        variables: of the model, for the checkpoint's manifest.
        stage, error: what became of it.
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
    persist: bool = True
    position: Mapping[str, Any] | None = None
    variables: dict[str, VariableLayout] | None = None
    stage: Stage = Stage.MEMORY
    error: str = Field(default="", max_length=4096)

    @property
    def due(self) -> bool:
        """Whether it is still to be persisted, in any case."""
        return self.persist and self.stage is Stage.MEMORY

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint that it becomes, or has become."""
        return CheckpointRef(uri=f"{self.place.rstrip('/')}/{self.name}", step=self.step)


@dataclass(frozen=True)
class Draft:
    """A copy that is being made.

    Attributes:
        bytes: to write into; valid within `SnapshotFolder.writing`.
        number: that the copy will have.
        commit: says, by its header, that all bytes are there.
    """

    bytes: memoryview
    number: int
    commit: Callable[[Snapshot], None]


class SnapshotFolder:
    """The two slots of a node.

    Args:
        folder: in shared memory; exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mapped: dict[Path, mmap.mmap] = {}

    @property
    def of_peer(self) -> "SnapshotFolder":
        """What this node holds of another node's copies."""
        return SnapshotFolder(self.folder / _PEER)

    @property
    def shared(self) -> bool:
        """Whether another node shall hold the newest copy, too."""
        return (self.folder / _SHARED).exists()

    def share(self) -> None:
        """Have another node hold the newest copy, and this node that of another."""
        (self.folder / _SHARED).touch()
        self.ring()

    def whole(self) -> list[Snapshot]:
        """The whole copies, oldest first."""
        found = [snapshot for slot in self._slots if (snapshot := _header(slot)) is not None]
        return sorted(found, key=lambda snapshot: snapshot.number)

    @property
    def newest(self) -> Snapshot | None:
        """The newest whole copy."""
        return next(reversed(self.whole()), None)

    def find(self, number: int) -> Snapshot | None:
        """The copy of a number; None when it was written over."""
        return next((snapshot for snapshot in self.whole() if snapshot.number == number), None)

    def reserve(self, size: int) -> None:
        """Get memory for both slots ahead of the first copy, whose pages then need not be made in the step.

        Args:
            size: bytes of a copy.

        Raises:
            NoMemoryError: there is not enough.
        """
        for slot in self._slots:
            self._map(slot, size)

    @property
    def busy(self) -> bool:
        """Whether a copy can't be made now, because what is in its slot is being read, or still to be persisted."""
        slot = self._target()
        with _locked(slot, "ab", fcntl.LOCK_EX) as file:
            return file is None or _is_due(slot)

    @contextlib.contextmanager
    def writing(self, size: int) -> Iterator["Draft | None"]:
        """A slot to write a copy into; None while what is in it is being read, or still to be persisted. The copy is whole
        with `Draft.commit`.

        Args:
            size: bytes of the copy.

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
            with memoryview(self._map(slot, size))[:size] as view:
                yield Draft(
                    view, newest.number + 1 if newest else 1, lambda header: self._commit(slot, header)
                )

    def _commit(self, slot: Path, header: Snapshot) -> None:
        try:
            _put(slot, header)
        except OSError as error:
            raise NoMemoryError(f"{slot}: shared memory has no room for a copy's header: {error}") from error
        self.ring()

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[memoryview | None]:
        """The bytes of a copy, which stay as they are within the context; None when it was written over."""
        for slot in self._slots:
            while _holds(slot, number):
                with _locked(slot, "ab", fcntl.LOCK_SH) as file:
                    if file is not None and _holds(slot, number):
                        yield _view(slot)
                        return
                time.sleep(LOCK_SECONDS)  # its writer is about to release it, or to take the header away
        yield None

    def settle(self, number: int, stage: Stage, error: str = "") -> None:
        """Note what became of a copy. Call it within `reading`. Where there is no room even for that the copy is given up."""
        for slot in self._slots:
            found = _header(slot)
            if found is not None and found.number == number:
                noted = found.model_copy(update={"stage": stage, "error": error[:4096]})
                try:
                    _put(slot, noted)
                except OSError:
                    # The old header must not stay: it says that the copy is still to be persisted. It was the room, too.
                    with contextlib.suppress(OSError):
                        _header_of(slot).unlink()
                        _put(slot, noted)

    def ring(self) -> None:
        """Wake the agent, if there is one."""
        with contextlib.suppress(OSError):  # nobody listens, or it has not yet heard the last thousands
            bell = os.open(self.folder / _BELL, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(bell, b"x")
            finally:
                os.close(bell)

    def listen(self) -> int:
        """A descriptor that becomes readable when somebody rings; its owner closes it."""
        bell = self.folder / _BELL
        with contextlib.suppress(FileExistsError):
            os.mkfifo(bell, 0o600)
        return os.open(bell, os.O_RDWR)

    @property
    def _slots(self) -> list[Path]:
        return [self.folder / f"slot-{index}" for index in range(SLOTS)]

    def _target(self) -> Path:
        """The slot to write next: one without a whole copy, else that with the older one."""
        headers = {slot: _header(slot) for slot in self._slots}
        return min(headers, key=lambda slot: header.number if (header := headers[slot]) else 0)

    def _map(self, slot: Path, size: int) -> mmap.mmap:
        """The slot's file in memory, made large enough. Kept: pages that are there already cost no time again."""
        size = max(1, size)
        mapped = self._mapped.get(slot)
        if mapped is not None and len(mapped) >= size:
            return mapped
        with slot.open("ab+") as file:
            try:
                # Reserved, not only promised: to write to a page that can't be had would end the process by SIGBUS.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise NoMemoryError(
                    f"{slot}: shared memory has no {size >> 20} MiB left for a copy of the model: give the pod an "
                    f"emptyDir of medium Memory at {SHARED_MEMORY} with {SLOTS} times the model's size: {error}"
                ) from error
        with slot.open("rb+") as file:
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._mapped[slot] = mmap.mmap(file.fileno(), size, flags=flags)
        return self._mapped[slot]


def node_folder(base: Path, job: str, node_type: str, node_id: int) -> Path:
    """Where a node has its slots: the same for an agent that is started again in the same pod.

    Args:
        base: of shared memory.
        job: its uid.
        node_type: of the node.
        node_id: of the node; never used twice.
    """
    return base / f"{_PREFIX}{job}-{node_type}-{node_id}"


def take_folder(folder: Path) -> SnapshotFolder:
    """Make a node's folder for its agent, for this user alone, or take over that of the agent before. Folders of other
    nodes that are abandoned are removed.

    Raises:
        CheckpointError: it can't be made, or belongs to somebody else.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise CheckpointError(f"{folder}: belongs to somebody else: remove it")
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
    with contextlib.suppress(OSError):  # somebody else's, or just removed
        found = folder.lstat()
        old = time.time() - found.st_mtime > ABANDONED_SECONDS
        if not old or found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            return
        # Of an agent: others may have named theirs likewise.
        with _locked(folder / _AGENT_LOCK, "rb+", fcntl.LOCK_EX) as lock:
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _header_of(slot: Path) -> Path:
    return slot.with_name(f"{slot.name}.json")


def _header(slot: Path) -> Snapshot | None:
    """The header of a slot; None without a whole copy."""
    try:
        found = Snapshot.model_validate_json(_header_of(slot).read_bytes())
        return found if slot.stat().st_size >= found.size else None
    except (OSError, ValidationError):
        return None


def _put(slot: Path, snapshot: Snapshot) -> None:
    fresh = slot.with_name(
        f"{slot.name}.new"
    )  # only who holds the slot's lock makes one; a killed one's is written over
    try:
        fresh.write_text(snapshot.model_dump_json())
        fresh.replace(_header_of(slot))
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _is_due(slot: Path) -> bool:
    found = _header(slot)
    return found is not None and found.due


def _holds(slot: Path, number: int) -> bool:
    found = _header(slot)
    return found is not None and found.number == number


def _view(slot: Path) -> memoryview:
    found = _header(slot)
    size = found.size if found is not None else 0
    # Of a file that is opened for it alone: the mapping keeps a descriptor, and with it the lock of the one it came from.
    with slot.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), max(1, size), access=mmap.ACCESS_READ))[:size]


@contextlib.contextmanager
def _locked(path: Path, mode: str, kind: int) -> Iterator[IO[bytes] | None]:
    """An open file whose lock is held within the context; None while others hold it."""
    with path.open(mode) as file:
        if not _lock(file.fileno(), kind):
            yield None
            return
        try:
            yield file
        finally:
            # Closing would not do: a process that was forked meanwhile has the same open file.
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
