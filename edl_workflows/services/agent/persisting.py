"""The second stage of a checkpoint: the agent writes complete copies of the model from shared memory to
storage.

It does so while training continues, and also after the training process has died, so that the last copy is
not lost. The result of each save is reported to the master under the save's ticket.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from edl_workflows.core.exceptions import CheckpointError, ConflictError, EdlError, NotFoundError
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import CheckpointEnd
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE, Part
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.part_saving import SavedAs, is_published, save_part
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.snapshots import ModelSnapshot, SnapshotFolder, SnapshotStage
from edl_workflows.training.client import MasterClient, call_until_answered

CHUNK_BYTES = 8 * 2**20

log = logging.getLogger(__name__)


class Persister:
    """Persists a node's copies in one thread, the oldest first.

    Args:
        folder: folder of the copies.
        client: connection to the master.
        node: the reporting node.
        on_idle: called in the thread when it has been woken and nothing is left to do.
    """

    def __init__(
        self,
        folder: SnapshotFolder,
        client: MasterClient,
        node: NodeRef,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self._client = client
        self._node = node
        self._on_idle = on_idle
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._asked = 0
        self._done = 0
        self._bell = folder.listen()
        self._thread = threading.Thread(target=self._work, name="persist", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread was started and not closed."""
        return self._thread.is_alive()

    def close(self, timeout: float, *, newest: bool = True) -> None:
        """Stop when everything is persisted and reported, or at the time-out.

        Args:
            timeout: seconds.
            newest: whether to call `save_newest` before.
        """
        if newest:
            self.save_newest()
        self.wait(timeout)
        self._stop.set()
        self.folder.ring()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            os.close(self._bell)

    def save_newest(self) -> None:
        """Persist the newest complete copy, even if it was made only for the case that its process dies. Call
        this when the process has died."""
        with self._changed:
            self._asked += 1
        self.folder.ring()

    def wait(self, timeout: float) -> bool:
        """Wait until all requests by `save_newest` are done; False on time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= self._asked, timeout)

    def _work(self) -> None:
        while not self._stop.is_set():
            os.read(self._bell, 4096)
            with self._changed:
                asked = self._asked
            try:
                self._persist_all(newest=asked > self._done)
            except Exception:  # the thread must survive
                log.exception("a copy of the model can't be persisted")
            with self._changed:
                self._done = asked
                self._changed.notify_all()
            self._on_idle()

    def _persist_all(self, *, newest: bool) -> None:
        """Persist the copies that are due, then the newest one if that was requested before."""
        while not self._stop.is_set() and (due := self._due()) is not None:
            self._persist(due)
        while newest and not self._stop.is_set() and (last := self._newest()) is not None:
            done = self._persist(last, lost=True)
            # Another member may have only its part of an earlier checkpoint. So all earlier copies are
            # persisted, too, until the chief has published one.
            newest = last.parts > 1 and not (done and last.part == 0)

    def _due(self) -> ModelSnapshot | None:
        return next(
            (copy for copy in self.folder.whole() if copy.stage is SnapshotStage.MEMORY and copy.due), None
        )

    def _newest(self) -> ModelSnapshot | None:
        """The newest copy in memory, unless a later checkpoint is already on storage."""
        copies = self.folder.whole()
        published = (copy for copy in copies if copy.stage is SnapshotStage.SAVED and copy.part == 0)
        saved = max((copy.number for copy in published), default=0)
        later = (
            copy for copy in reversed(copies) if copy.stage is SnapshotStage.MEMORY and copy.number > saved
        )
        return next(later, None)

    def _persist(self, snapshot: ModelSnapshot, *, lost: bool = False) -> bool:
        """Persist a copy, because it is due or its process was lost. Returns False if that failed."""
        error, fresh = "", False
        with self.folder.reading(snapshot.number) as block:
            if block is None:
                return False  # overwritten just now
            try:
                fresh = _store(snapshot, block, str(self._node), self._stop, lost=lost)
            except Exception as refused:  # noqa: BLE001 - told to the master; the next copy is tried
                error = (
                    str(refused) if isinstance(refused, EdlError) else f"{type(refused).__name__}: {refused}"
                )
                log.warning("step %d stays in memory: %s", snapshot.step, error)
            self.folder.settle(snapshot.number, SnapshotStage.FAILED if error else SnapshotStage.SAVED, error)
        if snapshot.part > 0:
            return not error  # the chief's agent publishes the checkpoint and tells the master
        accepted = self._report(snapshot, error)
        if fresh:
            with contextlib.suppress(EdlError):
                store = open_store(snapshot.place, snapshot.keep)
                if accepted:
                    store.retire()  # only now: an unwanted checkpoint must not displace an older one
                else:
                    store.discard(snapshot.ref)
        return not error

    def _report(self, snapshot: ModelSnapshot, error: str) -> bool:
        """Report the result to the master. Returns False if the master does not want the checkpoint."""
        if error:
            end = CheckpointEnd(node=self._node, error=error[:4096])
        else:
            log.info("persisted step %d as %s", snapshot.step, snapshot.ref.uri)
            end = CheckpointEnd(node=self._node, uri=snapshot.ref.uri, step=snapshot.step)
        try:
            call_until_answered(lambda: self._client.end_checkpoint(snapshot.ticket, end), self._stop)
        except (NotFoundError, ConflictError) as refused:
            # Another cluster version became active meanwhile: training does not continue from this model.
            log.warning("%s; the checkpoint is not kept", refused)
            return False
        except EdlError as refused:
            log.warning("%s", refused)
        return True


def _store(
    snapshot: ModelSnapshot, block: memoryview, writer: str, stop: threading.Event, *, lost: bool
) -> bool:
    """Persist a copy. Returns False if there was no need, for example because another agent has published it:
    this node's previous agent, which died before it recorded that, or the peer's agent.

    Raises:
        CheckpointError: the storage failed.
        InvalidError: there is no driver for its URI.
    """
    store = open_store(snapshot.place, snapshot.keep)
    if is_published(store, snapshot.ref) or (lost and snapshot.part > 0 and _is_outdated(snapshot, store)):
        return False
    try:
        if snapshot.parts > 1:
            part = Part(snapshot.part, snapshot.parts)
            saved_as = SavedAs(snapshot.name, snapshot.step, part, snapshot.position, snapshot.variables)
            save_part(store, saved_as, lambda file: _write(file, block), writer, stop, lost=lost)
            return True
        store.publish(
            snapshot.step,
            lambda folder: _write(folder / STATE_FILE, block),
            name=snapshot.name,
            position=snapshot.position,
            variables=snapshot.variables,
            writer=writer,
            retire=False,
        )
    except CheckpointError:
        if not is_published(store, snapshot.ref):
            raise
        return False
    return True


def _is_outdated(snapshot: ModelSnapshot, store: CheckpointStore) -> bool:
    """Whether a checkpoint of the same or a later step is published, as after the end of training; then
    nobody needs this part."""
    latest = store.latest()
    return latest is not None and latest[1].step >= snapshot.step


def _write(file: Path, block: memoryview) -> None:
    with file.open("wb") as out:
        for start in range(0, len(block), CHUNK_BYTES):
            out.write(block[start : start + CHUNK_BYTES])
