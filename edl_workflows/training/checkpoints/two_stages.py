"""The first stage of a checkpoint: the training process copies its state to shared memory and continues.

In the second stage the agent writes the copy to storage (`edl_workflows.services.agent.persisting`). Without
an agent, or with too little shared memory, the process writes to storage itself, and training waits for it.

If the owner of a state can wait before it changes its tensors
(`edl_workflows.training.checkpoints.copying.CopyGuard`), the state is copied in another thread, or by the
GPU, while the next step computes its gradients.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.training import CheckpointTicket
from edl_workflows.training.checkpoints.checkpoint_parts import WHOLE, shared_checkpoint_name
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore, checkpoint_name
from edl_workflows.training.checkpoints.copying import Registrar
from edl_workflows.training.checkpoints.part_saving import SavedAs, save_part
from edl_workflows.training.checkpoints.slot_memory import NoMemoryError
from edl_workflows.training.checkpoints.snapshots import (
    ModelSnapshot,
    SnapshotDraft,
    SnapshotFolder,
    SnapshotStage,
)
from edl_workflows.training.checkpoints.tensors import State, StateBlock, save, write_state

LOOK_SECONDS = 0.02
"""Polling interval while waiting for the agent; it adds to the pause of a switch."""
SLOT_SECONDS = 60.0
"""Longest time for which a save waits for a free slot, that is, until the agent has persisted an earlier
copy."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TwoStages:
    """How a training process saves in two stages.

    Attributes:
        state: returns the current state; called between two steps, on the chief only.
        store: where checkpoints go.
        every_seconds: interval of checkpoints that go to storage; None: only on request and before the end.
        memory_seconds: interval of additional copies that stay in memory, which the agent saves only if the
            process dies; None: no additional copies.
        replicate: whether another node also holds the newest copy; the same in all workers.
        part: returns this member's part of the current state, for checkpoints that all members save together
            (`Job.checkpoint_part`); None: the chief saves alone.
    """

    state: Callable[[], State]
    store: CheckpointStore
    every_seconds: float | None = None
    memory_seconds: float | None = None
    replicate: bool = False
    part: Callable[[], State] | None = None


class FirstStage:
    """Copies the state of one training process. To be used in its main thread only.

    Args:
        options: what to copy, and where to store it.
        folder: the node's slots in shared memory; None without an agent that persists them.
        version: cluster version of the process.
        job: identifies the job; the same in all members.
    """

    def __init__(
        self, options: TwoStages, folder: SnapshotFolder | None, version: int, job: str = ""
    ) -> None:
        self.version = version
        self.on_failure: Callable[[CheckpointTicket, Exception], object] = lambda _ticket, _error: None
        """Called in another thread when a copy for which nobody waits fails."""
        self._options = options
        self._folder = folder
        self._job = job
        self._copying = threading.Thread()
        self._reserving = threading.Thread()
        if folder is not None and options.replicate:
            folder.share()

    @property
    def busy(self) -> bool:
        """Whether a copy would have to wait, because the agent is still persisting an earlier copy, or the
        memory is not ready."""
        return self.reserving or (self._folder is not None and self._folder.busy)

    @property
    def reserving(self) -> bool:
        """Whether memory for the copies is being allocated."""
        return self._reserving.is_alive()

    def reserve(self, *, chief: bool) -> None:
        """Allocate the shared memory before the first copy, and register it with the device, in a separate
        thread, since that takes longer than copying. Memory to which a copy is being made is replaced only
        after the copy.

        Args:
            chief: whether this process is the chief. The others copy only parts.
        """

        def work(
            folder: SnapshotFolder, size: int, registrar: Registrar | None, before: list[threading.Thread]
        ) -> None:
            for thread in before:
                thread.join()
            try:
                folder.reserve(size, registrar)
            except NoMemoryError as error:
                log.warning("%s; checkpoints are saved directly, and training waits for them", error)

        current_state = self._options.part or (self._options.state if chief else None)
        if self._folder is not None and current_state is not None:
            state = current_state()
            before = [thread for thread in (self._reserving, self._copying) if thread.is_alive()]
            arguments = self._folder, StateBlock(state).size, state.registrar, before
            self._reserving = threading.Thread(target=work, args=arguments, name="reserve", daemon=True)
            self._reserving.start()

    def save(self, ticket: CheckpointTicket, *, persist: bool, wait: bool) -> ModelSnapshot | CheckpointRef:
        """Copy the state; waits for a slot if necessary.

        Args:
            ticket: the master's ticket.
            persist: whether the copy goes to storage in any case.
            wait: whether to return only when the copy is complete, even if the state could be copied in
                another thread.

        Returns:
            The copy, whose result the agent will report to the master; or the checkpoint, if this process has
            saved it itself.

        Raises:
            CheckpointError: the storage failed, or no slot became free. Exceptions of the state's ``fill``
                propagate.
        """
        return self._save(self._options.state(), ticket, persist=persist, wait=wait)

    def save_part(self, ticket: CheckpointTicket, *, persist: bool) -> ModelSnapshot | CheckpointRef:
        """Copy this member's part of the state, as `save` does.

        Args:
            ticket: the master's ticket for the chief's part; a ticket without an id for other parts.
            persist: whether the copy goes to storage in any case; the same in all members.
        """
        assert self._options.part is not None, "say what this member's part is: TwoStages.part"
        return self._save(self._options.part(), ticket, persist=persist, wait=False)

    def close(self, seconds: float) -> None:
        """End the registration of the memory with the device, because the process ends.

        Args:
            seconds: longest wait for a copy, and for memory that is being allocated. If they take longer, the
                operating system ends the registration with the process.
        """
        if self._copying.is_alive():
            self._copying.join(seconds)
        if self._folder is not None and not self._copying.is_alive():
            self._folder.release(seconds)

    def until_stored(self, snapshot: ModelSnapshot, stopped: Callable[[], bool]) -> CheckpointRef | None:
        """Wait until the agent has persisted a copy. Returns None if stopped before that.

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

    def _save(
        self, state: State, ticket: CheckpointTicket, *, persist: bool, wait: bool
    ) -> ModelSnapshot | CheckpointRef:
        if self._copying.is_alive():
            self._copying.join()
        if self._folder is None:
            return self._save_directly(state, ticket)
        block = StateBlock(state)
        deadline = time.monotonic() + SLOT_SECONDS
        while time.monotonic() < deadline:
            try:
                snapshot = self._copy(self._folder, block, state, self._header(state, ticket, persist), wait)
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

    def _header(self, state: State, ticket: CheckpointTicket, persist: bool) -> ModelSnapshot:
        """The header of a copy; its number and size are set later."""
        return ModelSnapshot(
            number=1,
            ticket=ticket.id,
            version=self.version,
            step=state.step,
            size=0,
            place=self._options.store.place,
            name=self._name(state),
            keep=self._options.store.keep,
            part=state.part.index,
            parts=state.part.count,
            persist=persist,
            position=ticket.position,
            variables=None if state.layout is None else dict(state.layout),
        )

    def _name(self, state: State) -> str:
        if state.part == WHOLE:
            return checkpoint_name(state.step)
        return shared_checkpoint_name(state.step, self._job, self.version)

    def _copy(
        self, folder: SnapshotFolder, block: StateBlock, state: State, header: ModelSnapshot, wait: bool
    ) -> ModelSnapshot | None:
        """Copy a state, or begin to copy it in another thread. Returns None if no slot is free."""
        with contextlib.ExitStack() as slot:
            draft = slot.enter_context(folder.writing(block.size, state.registrar))
            if draft is None:
                return None
            snapshot = header.model_copy(update={"number": draft.number, "size": block.size})
            if wait or state.guard is None:
                block.write(draft.bytes)
                draft.commit(snapshot)
                return snapshot
            state.guard.begin()
            rest = slot.pop_all()
            arguments = rest, block, state, draft, snapshot
            copying = threading.Thread(target=self._copy_in_thread, args=arguments, name="copy-state")
            try:
                copying.start()
            except RuntimeError as error:
                state.guard.end()  # else the next update would wait forever
                rest.close()
                raise CheckpointError(
                    f"no thread can be started to copy the state of step {state.step}: {error}: raise the "
                    "pod's limits of processes and memory"
                ) from error
            self._copying = copying
        return snapshot

    def _copy_in_thread(
        self,
        slot: contextlib.ExitStack,
        block: StateBlock,
        state: State,
        draft: SnapshotDraft,
        snapshot: ModelSnapshot,
    ) -> None:
        assert state.guard is not None
        try:
            with slot:
                try:
                    copies = block.begin(draft.bytes)
                    state.guard.begun(copies)
                    copies.wait()
                finally:
                    state.guard.end()
                draft.commit(snapshot)
        except Exception as error:  # told to the master; training goes on without this checkpoint
            log.exception("copying the state of step %d failed", state.step)
            self.on_failure(CheckpointTicket(id=snapshot.ticket), error)

    def _save_directly(self, state: State, ticket: CheckpointTicket) -> CheckpointRef:
        store, part = self._options.store, state.part
        if part == WHOLE:
            return store.publish(
                state.step,
                lambda folder: save(folder, state),
                position=ticket.position,
                variables=state.layout,
            )
        saved_as = SavedAs(self._name(state), state.step, part, ticket.position, state.layout)
        writer = f"{socket.gethostname()}-{threading.get_native_id()}"
        save_part(store, saved_as, lambda file: write_state(file, state), writer, threading.Event())
        store.retire()
        return CheckpointRef(uri=f"{store.place.rstrip('/')}/{saved_as.name}", step=state.step)
