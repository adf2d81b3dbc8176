"""What an adapter for a training framework implements for the loop of a collective job
(`edl_workflows.training.collective.world`), and how its checkpoints are saved."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.options import TrainingOptions

if TYPE_CHECKING:
    from edl_workflows.training.checkpoints.tensors import Array, State


@dataclass(frozen=True)
class Wishes:
    """What the master asks of a member (0 or 1); after the reduction, of how many members it asks that.

    Attributes:
        drain: to stop at the next step boundary.
        leave: to exit.
        save: what the chief wants all members to save after the step, as a number of `SaveWish`; used only by
            adapters whose members save together (`PartFramework`).
    """

    drain: float = 0.0
    leave: float = 0.0
    save: float = 0.0


@dataclass(frozen=True)
class Reduced:
    """The results of a step's reduction, which are the same in all members.

    Attributes:
        loss: mean loss over the records of the global batch.
        wishes: the members' wishes, summed.
    """

    loss: float
    wishes: Wishes


class Framework(Protocol):
    """What an adapter for a training framework implements.

    `join`, `broadcast`, `step` and `meet` are collective: all members call them in the same order. They raise
    UnavailableError when the group is broken. `join` is called once in a process, and the group lasts until
    the process exits, so nothing here closes it (with `RegroupingFramework`, `regroup` replaces it).
    """

    def join(self, place: Place) -> None:
        """Build the model, form the group with the other members of the version, and warm up, that is, run
        once and undo everything that training will run. The previous version may still train in the meantime.
        """
        ...

    def state(self, step: int, metadata: Mapping[str, str]) -> "State":
        """The current state of model and optimizer, to save it."""
        ...

    def load(self, tensors: Mapping[str, "Array"]) -> None:
        """Load a saved state.

        Raises:
            CheckpointError: the state belongs to another model.
        """
        ...

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        """Broadcast rank 0's model and optimizer to all members, and return rank 0's `numbers`.

        Args:
            numbers: as many in all members; 64-bit floating point holds each exactly.
        """
        ...

    def step(self, mini_batches: Sequence[Any], wishes: Wishes) -> Reduced:
        """Sum the gradients of the mini-batches (possibly none, or of no records), all-reduce the sums, and
        update once with the total divided by the number of records of all members. The result does not depend
        on which member computed which mini-batch.
        """
        ...

    def meet(self) -> None:
        """Barrier: return when all members have called it."""
        ...


@runtime_checkable
class ReplicaFramework(Protocol):
    """What an adapter implements, in addition to `Framework`, whose members hold the model together in
    replica groups."""

    def guarding(self) -> AbstractContextManager[None]:
        """A context for what the program computes with the model outside of a step. An error in it that the
        loss of another process of the group may have caused ends this process as in a step."""
        ...


@dataclass(frozen=True)
class Saving:
    """How checkpoints are saved.

    Attributes:
        store: where checkpoints go; all members that may become rank 0 must be able to reach it.
        every_seconds: interval of periodic checkpoints; None: only on the master's request and at the end.
        memory_seconds: interval of additional copies that stay in the node's shared memory; None: no
            additional copies.
        replicate: whether the agent of another node also holds a copy.
    """

    store: CheckpointStore
    every_seconds: float | None = 600.0
    memory_seconds: float | None = None
    replicate: bool = False

    @classmethod
    def from_options(cls, options: TrainingOptions) -> Self:
        """The settings from a program's options.

        Raises:
            InvalidError: there is no driver for the checkpoints' URI.
        """
        store = open_store(options.checkpoint_dir, options.keep)
        return cls(store, options.save_seconds, options.memory_seconds, options.replicate)
