"""From which checkpoint a training process starts, and what the master hears of one that can't be restored.

Which one is the master's word. Where its bytes are read is decided here: this node's shared memory holds the same as the
storage, and is nearer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edl_workflows.agent.checkpoints import MANIFEST, STATE_FILE, CheckpointStore
from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.patience import patiently
from edl_workflows.agent.snapshots import Snapshot, SnapshotFolder, Stage
from edl_workflows.exceptions import CheckpointError, EdlError, InvalidError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.nodes import NodeRef
from edl_workflows.protocol.training import CheckpointDamage, CheckpointRestore

if TYPE_CHECKING:
    from edl_workflows.agent.tensors import Loaded

REPORTED = 3
"""Damaged checkpoints that the master hears of: as many as it remembers."""
_ERROR_CHARACTERS = 4096

log = logging.getLogger(__name__)


class Restoring:
    """Checkpoints as one training process finds them, for its main thread.

    Args:
        client: to the master.
        node, version: who starts.
        memory: the node's copies in shared memory, its own and those of another node; None without any.
    """

    def __init__(
        self, client: MasterClient, node: NodeRef, version: int, memory: SnapshotFolder | None = None
    ) -> None:
        self._memory = memory
        self._verified = ""
        self._client = client
        self._node = node
        self._version = version

    def find(self, named: CheckpointRef | None, store: CheckpointStore) -> CheckpointRef | None:
        """The checkpoint to start from; None if there is none yet.

        The master's word wins: model and data position must belong together. Where it names none, the newest whole one
        in the folder is taken, and the master hears of those that were passed over.

        Args:
            named: what the master says.
            store: of the job.

        Raises:
            CheckpointError: the one that was named is damaged, or none in the folder is whole; the master was told.
        """
        passed_over: list[tuple[str, CheckpointError]] = []
        try:
            if named is not None and self.holds(named):
                return named
            if named is not None:
                found: CheckpointRef | None = store.verify(named)
            else:
                found = store.newest(lambda uri, error: passed_over.append((uri, error)))
        except CheckpointError as error:
            self.report(named.uri if named else store.place, error)
            raise
        self._verified = found.uri if found is not None else ""
        for uri, reason in passed_over[:REPORTED]:
            self.report(uri, reason, found)
        return found

    def tell(self, found: CheckpointRef, store: CheckpointStore) -> None:
        """Tell the master what this process starts from, where the master named nothing: the data then goes to where that model
        is. However long it takes to reach it: who trained before might train records twice.

        Raises:
            CheckpointError: the data position in its manifest is damaged; the master was told.
            EdlError: another version has become active; this process will be ended.
        """
        restore = CheckpointRestore(
            node=self._node,
            version=self._version,
            uri=found.uri,
            step=found.step,
            position=store.manifest(found).position,
        )
        try:
            patiently(lambda: self._client.restored_checkpoint(restore), threading.Event())
        except InvalidError as refused:
            error = CheckpointError(f"{found.uri}/{MANIFEST}: {refused}")
            self.report(found.uri, error)
            raise error from refused

    def holds(self, checkpoint: CheckpointRef) -> bool:
        """Whether this node's shared memory has a copy of a checkpoint."""
        return bool(self._copies_of(checkpoint))

    @contextlib.contextmanager
    def state(self, checkpoint: CheckpointRef, store: CheckpointStore) -> Iterator[Loaded]:
        """See `Job.state`."""
        from edl_workflows.agent import tensors

        for folder, copy in self._copies_of(checkpoint):
            with folder.reading(copy.number) as block:
                loaded = None
                if block is not None:
                    with contextlib.suppress(CheckpointError):  # then storage may have it whole
                        loaded = tensors.read(block, checkpoint.uri)
                if loaded is not None:
                    log.info("restoring step %d from shared memory", checkpoint.step)
                    yield loaded
                    return
        if checkpoint.uri != self._verified:  # memory had it when it was chosen
            store.verify(checkpoint)
        yield tensors.load(store.local(checkpoint) / STATE_FILE)

    def _copies_of(self, checkpoint: CheckpointRef) -> list[tuple[SnapshotFolder, Snapshot]]:
        folders = [self._memory, self._memory.of_peer] if self._memory is not None else []
        return [
            (folder, copy)
            for folder in folders
            for copy in folder.whole()
            if copy.ref == checkpoint and copy.stage is not Stage.FAILED
        ]

    def report(self, uri: str, error: CheckpointError, instead: CheckpointRef | None = None) -> None:
        """Tell the master that a checkpoint can't be restored, however long it takes to reach it.

        Args:
            uri: the checkpoint.
            error: what is wrong with it.
            instead: what this process starts from; None: it can't start.
        """
        damage = CheckpointDamage(
            node=self._node,
            version=self._version,
            uri=uri,
            error=str(error)[:_ERROR_CHARACTERS],
            instead=instead,
        )
        try:
            patiently(lambda: self._client.damaged_checkpoint(damage), threading.Event())
        except EdlError as refused:
            log.warning("%s", refused)  # another version has become active; this process will be ended
