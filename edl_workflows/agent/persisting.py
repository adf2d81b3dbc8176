"""The second stage of a checkpoint: the agent brings whole copies of the model from shared memory to storage.

It does so while training goes on, and when the training process is gone: what that had copied is not lost with it. The
master hears of each ticket how it ended.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from edl_workflows.agent.checkpoints import STATE_FILE, CheckpointStore
from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.patience import patiently
from edl_workflows.agent.remote_store import open_store
from edl_workflows.agent.snapshots import Snapshot, SnapshotFolder, Stage
from edl_workflows.exceptions import CheckpointError, ConflictError, EdlError, NotFoundError
from edl_workflows.protocol.nodes import NodeRef
from edl_workflows.protocol.training import CheckpointEnd

CHUNK_BYTES = 8 * 2**20

log = logging.getLogger(__name__)


class Persister:
    """One thread that persists a node's copies, the oldest first.

    Args:
        folder: of the copies.
        client: to the master.
        node: who reports.
        on_idle: called in the thread when somebody has rung, and nothing is left to do.
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
        """Whether it was started, and not closed."""
        return self._thread.is_alive()

    def close(self, timeout: float, *, newest: bool = True) -> None:
        """Stop when all is persisted and the master knows, or so many seconds are over.

        Args:
            timeout: seconds.
            newest: as by `save_newest`, before.
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
        """Persist the newest whole copy, also one that was made for the case that its process dies: it has died."""
        with self._changed:
            self._asked += 1
        self.folder.ring()

    def wait(self, timeout: float) -> bool:
        """Wait until all is done that `save_newest` asked for; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= self._asked, timeout)

    def _work(self) -> None:
        while not self._stop.is_set():
            os.read(self._bell, 4096)
            with self._changed:
                asked = self._asked
            try:
                self._persist_all(newest=asked > self._done)
            except Exception:  # without this thread nothing would be persisted any more
                log.exception("a copy of the model can't be persisted")
            with self._changed:
                self._done = asked
                self._changed.notify_all()
            self._on_idle()

    def _persist_all(self, *, newest: bool) -> None:
        """What is due; then the newest, if that was asked for before this began to look."""
        while not self._stop.is_set() and (due := self._due()) is not None:
            self._persist(due)
        if newest and not self._stop.is_set() and (last := self._newest()) is not None:
            self._persist(last)

    def _due(self) -> Snapshot | None:
        return next((copy for copy in self.folder.whole() if copy.stage is Stage.MEMORY and copy.due), None)

    def _newest(self) -> Snapshot | None:
        """The newest copy in memory, but not one that was made before what stands on storage."""
        copies = self.folder.whole()
        saved = max((copy.number for copy in copies if copy.stage is Stage.SAVED), default=0)
        later = (copy for copy in reversed(copies) if copy.stage is Stage.MEMORY and copy.number > saved)
        return next(later, None)

    def _persist(self, snapshot: Snapshot) -> None:
        error, fresh = "", False
        with self.folder.reading(snapshot.number) as block:
            if block is None:
                return  # written over in this moment
            try:
                fresh = _store(snapshot, block, str(self._node))
            except Exception as refused:  # noqa: BLE001 - the master must know, and the next copy is tried again
                error = (
                    str(refused) if isinstance(refused, EdlError) else f"{type(refused).__name__}: {refused}"
                )
                log.warning("step %d stays in memory: %s", snapshot.step, error)
            self.folder.settle(snapshot.number, Stage.FAILED if error else Stage.SAVED, error)
        wanted = self._report(snapshot, error)
        if fresh:
            with contextlib.suppress(EdlError):
                store = open_store(snapshot.place, snapshot.keep)
                if wanted:
                    store.retire()  # only now: one that the master does not want takes no other's place
                else:
                    store.discard(snapshot.ref)

    def _report(self, snapshot: Snapshot, error: str) -> bool:
        """Tell the master; False if it does not want the checkpoint."""
        if error:
            end = CheckpointEnd(node=self._node, error=error[:4096])
        else:
            log.info("persisted step %d as %s", snapshot.step, snapshot.ref.uri)
            end = CheckpointEnd(node=self._node, uri=snapshot.ref.uri, step=snapshot.step)
        try:
            patiently(lambda: self._client.end_checkpoint(snapshot.ticket, end), self._stop)
        except (NotFoundError, ConflictError) as refused:
            # Another cluster version became active meanwhile: nobody goes on from this model.
            log.warning("%s; the checkpoint is not kept", refused)
            return False
        except EdlError as refused:
            log.warning("%s", refused)
        return True


def _store(snapshot: Snapshot, block: memoryview, writer: str) -> bool:
    """Persist a copy; False if another agent had published it: one before this one, which died before it noted so, or the
    partner's, which may do so at the same time.

    Raises:
        CheckpointError: the storage refused.
        InvalidError: there is no driver for its URI.
    """
    store = open_store(snapshot.place, snapshot.keep)
    if _stands(store, snapshot):
        return False
    try:
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
        if not _stands(store, snapshot):
            raise
        return False
    return True


def _stands(store: CheckpointStore, snapshot: Snapshot) -> bool:
    with contextlib.suppress(CheckpointError):
        store.verify(snapshot.ref)
        return True
    return False


def _write(file: Path, block: memoryview) -> None:
    with file.open("wb") as out:
        for start in range(0, len(block), CHUNK_BYTES):
            out.write(block[start : start + CHUNK_BYTES])
