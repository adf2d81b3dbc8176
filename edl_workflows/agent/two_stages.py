"""The first stage of a checkpoint: the training process copies its state to shared memory and continues.

In the second stage the agent writes the copy to storage (`edl_workflows.agent.persisting`). Without an agent,
or with too little shared memory, the process writes to storage itself, and training waits for it.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edl_workflows.agent.checkpoints import CheckpointStore, checkpoint_name
from edl_workflows.agent.snapshots import ModelSnapshot, NoMemoryError, SnapshotFolder, SnapshotStage
from edl_workflows.agent.tensors import State, StateBlock, save
from edl_workflows.exceptions import CheckpointError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.training import CheckpointTicket

LOOK_SECONDS = 0.02
"""Polling interval while waiting for the agent; part of the stall of a switch."""
SLOT_SECONDS = 60.0
"""Time that a requested checkpoint waits for a free slot, until the agent has persisted an earlier copy."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TwoStages:
    """How a training process saves in two stages.

    Attributes:
        state: returns the current state; called between two steps, on the chief only.
        store: where checkpoints go.
        every_seconds: interval of checkpoints that go to storage; None: only on request and before the end.
        memory_seconds: interval of copies in memory, which the agent saves if the process dies; None: only
            what goes to storage is copied.
        replicate: whether another node holds the newest copy, too; the same in all workers.
    """

    state: Callable[[], State]
    store: CheckpointStore
    every_seconds: float | None = None
    memory_seconds: float | None = None
    replicate: bool = False


class FirstStage:
    """Copies the state of one training process; for its main thread.

    Args:
        options: what to copy, and where to store it.
        folder: the node's slots in shared memory; None without an agent that persists them.
        version: cluster version of the process.
    """

    def __init__(self, options: TwoStages, folder: SnapshotFolder | None, version: int) -> None:
        self.version = version
        self._options = options
        self._folder = folder
        if folder is not None and options.replicate:
            folder.share()

    @property
    def busy(self) -> bool:
        """Whether a copy would have to wait for a slot, because the agent is still persisting an earlier
        copy."""
        return self._folder is not None and self._folder.busy

    def reserve(self) -> None:
        """Allocate the shared memory before the first copy, in a thread, since that takes as long as the
        copy."""

        def work(folder: SnapshotFolder, size: int) -> None:
            try:
                folder.reserve(size)
            except NoMemoryError as error:
                log.warning("%s; checkpoints are saved directly, and training waits for them", error)

        if self._folder is not None:
            size = StateBlock(self._options.state()).size
            threading.Thread(target=work, args=(self._folder, size), name="reserve", daemon=True).start()

    def save(self, ticket: CheckpointTicket, *, persist: bool) -> ModelSnapshot | CheckpointRef:
        """Copy the state; waits for a slot if necessary.

        Args:
            ticket: from the master.
            persist: whether the copy goes to storage in any case.

        Returns:
            The copy, whose result the agent reports to the master; or the checkpoint, if the process saved it
            itself.

        Raises:
            CheckpointError: the storage failed, or no slot became free. Exceptions of the state's ``fill``
                propagate.
        """
        state = self._options.state()
        if self._folder is None:
            return self._save_directly(state, ticket)
        block = StateBlock(state)
        deadline = time.monotonic() + SLOT_SECONDS
        while time.monotonic() < deadline:
            try:
                snapshot = self._copy(self._folder, block, state, ticket, persist=persist)
            except NoMemoryError as error:
                log.warning("%s; saving directly to storage", error)
                return self._save_directly(state, ticket)
            if snapshot is not None:
                return snapshot
            time.sleep(LOOK_SECONDS)
        raise CheckpointError(
            f"{self._options.store.place}: the agent is still persisting an earlier copy after "
            f"{SLOT_SECONDS:.0f} s: the storage is slow, or hangs"
        )

    def until_stored(self, snapshot: ModelSnapshot, stopped: Callable[[], bool]) -> CheckpointRef | None:
        """Wait until the agent has persisted a copy; None if stopped before.

        Raises:
            CheckpointError: the agent failed to persist it.
        """
        assert self._folder is not None, "without an agent there are no copies"
        while not stopped():
            now = self._folder.find(snapshot.number)
            if now is None:
                # The copy was overwritten, so the agent has persisted it or failed to.
                return self._options.store.verify(snapshot.ref)
            if now.stage is SnapshotStage.SAVED:
                return snapshot.ref
            if now.stage is SnapshotStage.FAILED:
                raise CheckpointError(now.error)
            time.sleep(LOOK_SECONDS)
        return None

    def _copy(
        self,
        folder: SnapshotFolder,
        block: StateBlock,
        state: State,
        ticket: CheckpointTicket,
        *,
        persist: bool,
    ) -> ModelSnapshot | None:
        with folder.writing(block.size) as draft:
            if draft is None:
                return None
            block.write(draft.bytes)
            snapshot = ModelSnapshot(
                number=draft.number,
                ticket=ticket.id,
                version=self.version,
                step=state.step,
                size=block.size,
                place=self._options.store.place,
                name=checkpoint_name(state.step),
                keep=self._options.store.keep,
                persist=persist,
                position=ticket.position,
                variables=None if state.layout is None else dict(state.layout),
            )
            draft.commit(snapshot)
        return snapshot

    def _save_directly(self, state: State, ticket: CheckpointTicket) -> CheckpointRef:
        return self._options.store.publish(
            state.step, lambda folder: save(folder, state), position=ticket.position, variables=state.layout
        )
