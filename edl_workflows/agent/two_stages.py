"""The first stage of a checkpoint: the training process copies its state into shared memory and goes on.

The second, to storage, is the agent's (`edl_workflows.agent.persisting`). Where there is no agent that would do it, or no
room in shared memory, the process saves to storage itself, and training waits for it as ever.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edl_workflows.agent.checkpoints import CheckpointStore, checkpoint_name
from edl_workflows.agent.snapshots import NoMemoryError, Snapshot, SnapshotFolder, Stage
from edl_workflows.agent.tensors import Block, State, save
from edl_workflows.exceptions import CheckpointError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.training import CheckpointTicket

LOOK_SECONDS = 0.02
"""How often a process that waits for the agent looks: part of the stall of a switch."""
SLOT_SECONDS = 60.0
"""How long a checkpoint that is asked for waits until the agent has persisted the one before the last."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TwoStages:
    """How a training process saves in two stages.

    Attributes:
        state: gives the state of now; called between two steps, on the chief only.
        store: where the checkpoints go.
        every_seconds: between checkpoints that go to storage; None: only on request and before the end.
        memory_seconds: between copies in memory, from which the agent saves when the process is lost; None: only what
            goes to storage is copied.
        replicate: whether another node holds the newest copy, too; the same in all workers.
    """

    state: Callable[[], State]
    store: CheckpointStore
    every_seconds: float | None = None
    memory_seconds: float | None = None
    replicate: bool = False


class FirstStage:
    """Copies of one training process, for its main thread.

    Args:
        options: what to copy, and where it goes.
        folder: the node's slots; None where no agent looks after them.
        version: cluster version of the process.
    """

    def __init__(self, options: TwoStages, folder: SnapshotFolder | None, version: int) -> None:
        self._options = options
        self._folder = folder
        self._version = version
        if folder is not None and options.replicate:
            folder.share()

    @property
    def busy(self) -> bool:
        """Whether a copy would have to wait for the agent, which still persists the one before the last."""
        return self._folder is not None and self._folder.busy

    def reserve(self) -> None:
        """Get the shared memory ahead of the first copy, in a thread: it takes as long as the copy."""

        def work(folder: SnapshotFolder, size: int) -> None:
            try:
                folder.reserve(size)
            except NoMemoryError as error:
                log.warning("%s; checkpoints are saved without it, and training waits for them", error)

        if self._folder is not None:
            size = Block(self._options.state()).size
            threading.Thread(target=work, args=(self._folder, size), name="reserve", daemon=True).start()

    def save(self, ticket: CheckpointTicket, *, persist: bool) -> Snapshot | CheckpointRef:
        """Copy the state; waits for a slot if need be.

        Args:
            ticket: of the master.
            persist: whether it goes to storage in any case.

        Returns:
            The copy, of whose end the agent tells the master; or the checkpoint where the process saved it itself.

        Raises:
            CheckpointError: the storage refused, or a slot did not become free. What the state's ``fill`` raises goes
                through.
        """
        state = self._options.state()
        if self._folder is None:
            return self._save_directly(state, ticket)
        block = Block(state)
        deadline = time.monotonic() + SLOT_SECONDS
        while time.monotonic() < deadline:
            try:
                snapshot = self._copy(self._folder, block, state, ticket, persist=persist)
            except NoMemoryError as error:
                log.warning("%s; saved without it", error)
                return self._save_directly(state, ticket)
            if snapshot is not None:
                return snapshot
            time.sleep(LOOK_SECONDS)
        raise CheckpointError(
            f"{self._options.store.place}: the agent still persists an earlier copy after {SLOT_SECONDS:.0f} s: "
            "the storage is slow, or hangs"
        )

    def until_stored(self, snapshot: Snapshot, stopped: Callable[[], bool]) -> CheckpointRef | None:
        """Wait until the agent has persisted a copy; None if stopped before.

        Raises:
            CheckpointError: it could not.
        """
        assert self._folder is not None, "only with an agent there are copies"
        while not stopped():
            now = self._folder.find(snapshot.number)
            if now is None:
                return self._options.store.verify(
                    snapshot.ref
                )  # memory is no more; storage says what became of it
            if now.stage is Stage.SAVED:
                return snapshot.ref
            if now.stage is Stage.FAILED:
                raise CheckpointError(now.error)
            time.sleep(LOOK_SECONDS)
        return None

    def _copy(
        self, folder: SnapshotFolder, block: Block, state: State, ticket: CheckpointTicket, *, persist: bool
    ) -> Snapshot | None:
        with folder.writing(block.size) as draft:
            if draft is None:
                return None
            block.write(draft.bytes)
            snapshot = Snapshot(
                number=draft.number,
                ticket=ticket.id,
                version=self._version,
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
