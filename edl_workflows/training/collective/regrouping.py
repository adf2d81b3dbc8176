"""How a member of a collective job continues in the same process when the members change.

The model stays in the memory of the processes. When a member is lost, the master announces the next version
at once (`edl_workflows.core.protocol.cluster.Member.process`), and each survivor:

1. leaves the group of the old version. A thread that watches the master's directive aborts the collective
   operation under way, so that no member waits for a dead one;
2. forms the group of the new version;
3. compares its progress with that of the others. A member has made a step once it has received all reduced
   gradients, so it can be one step ahead of another member, or one end of an epoch, but never two. Members
   that are behind, and new members, get the state of a member that is not behind.

A member that joins follows the same steps, beginning without a state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeGuard

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE, STATE_DAMAGED_EXIT_CODE
from edl_workflows.training.collective.epochs import EpochEnds
from edl_workflows.training.job import Job


@dataclass(frozen=True)
class Place:
    """A member's place in its group.

    Attributes:
        version: cluster version.
        rank: rank of the member.
        addresses: addresses of all members by rank, as reachable from here; for this member itself, the
            address on which it listens.
    """

    version: int
    rank: int
    addresses: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.addresses)


class Progress(NamedTuple):
    """The progress of a member's model: its global step, and the data position after that step.

    Attributes:
        step: global step; `NO_STATE` for a member that has no model yet.
        epoch: as in `edl_workflows.training.data.sampler.ElasticSampler`.
        completed: as in `edl_workflows.training.data.sampler.ElasticSampler`.
        ends: the ends of epochs.
    """

    step: int
    epoch: int
    completed: int
    ends: EpochEnds = EpochEnds()

    @property
    def events(self) -> int:
        """Number of steps and ends of epochs, of which all members have the same ones in the same order;
        `NO_STATE` without a model."""
        return NO_STATE if self.step == NO_STATE else self.step + self.ends.ended

    def to_numbers(self) -> list[int]:
        """For a broadcast."""
        return [self.step, self.epoch, self.completed, *self.ends.to_numbers()]

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> Self:
        """The inverse of `to_numbers`."""
        step, epoch, completed, *ends = numbers
        return cls(step, epoch, completed, EpochEnds.of_numbers(ends))


class CannotTakePartError(UnavailableError):
    """This member can't take part in any group: its process exits at once, with `exit_code`."""

    exit_code = CLUSTER_LOST_EXIT_CODE


class DamagedStateError(CannotTakePartError):
    """The state of another member did not arrive as it was sent."""

    exit_code = STATE_DAMAGED_EXIT_CODE


NO_STATE = -1
NOTHING_YET = Progress(NO_STATE, 1, 0)


class RegroupingFramework(Protocol):
    """What an adapter implements, in addition to `edl_workflows.training.collective.framework.Framework`, so
    that its processes continue when the members change. All methods but `prepare`, `interrupt`, `waiting` and
    `close` are collective."""

    def prepare(self) -> None:
        """Build the model and warm up, alone."""
        ...

    def regroup(self, place: Place) -> None:
        """Form the group of a version, in place of the present one if there is one.

        Raises:
            UnavailableError: a member can't be reached, or `interrupt` was called.
            CannotTakePartError: this member can't listen at its address.
        """
        ...

    def interrupt(self, version: int) -> None:
        """End all present and future waits in the group of this version or of an earlier one: they raise
        UnavailableError. May be called in any thread."""
        ...

    def close(self) -> None:
        """Disconnect from the other members, within seconds, because this process ends."""
        ...

    def waiting(self) -> float:
        """Seconds for which this member has waited for the others in the present collective call; 0 if it
        does not wait. May be called in any thread."""
        ...

    def any_of_replica(self, wanted: bool) -> bool:
        """Whether `wanted` is true in at least one process of this process's replica group. Collective within
        the replica group, whose processes must all do the same next."""
        ...

    def compare(self, number: int) -> list[int]:
        """The numbers that the members pass, by rank."""
        ...

    def broadcast(self, numbers: Sequence[int], root: int = 0, *, load: bool = True) -> list[int]:
        """Broadcast the model and optimizer of rank `root`, and return that rank's `numbers`. A member loads
        the state only if `load` is set, and only after all of it has arrived.

        Raises:
            DamagedStateError: the received state differs from the sent one.
        """
        ...


def can_regroup(framework: object) -> TypeGuard[RegroupingFramework]:
    """Whether an adapter implements `RegroupingFramework`.

    Raises:
        InvalidError: it has `regroup`, but not all other methods.
    """
    methods = [name for name in vars(RegroupingFramework) if not name.startswith("_")]
    missing = [name for name in methods if not hasattr(framework, name)]
    if missing and hasattr(framework, RegroupingFramework.regroup.__name__):
        raise InvalidError(
            f"{type(framework).__name__} has regroup, but no {', '.join(missing)}: implement all methods of "
            "edl_workflows.training.collective.RegroupingFramework, or not regroup"
        )
    return not missing


class GroupChanges:
    """Moves a member's process from one group to the next.

    Args:
        job: the member's job.
        framework: the adapter.
        find_place: returns the member's place in its present version.
    """

    def __init__(self, job: Job, framework: RegroupingFramework, find_place: Callable[[], Place]) -> None:
        self._job = job
        self._framework = framework
        self._find_place = find_place
        job.follow_directive(lambda: framework.interrupt(job.newest_group_over))
        job.report_presence(framework.waiting)
        job.call_on_close(framework.close)

    @property
    def due(self) -> bool:
        """Whether this process must continue in a later version now, between two steps. Collective within the
        replica group, in which the answer is the same for all processes."""
        return self._framework.any_of_replica(self._job.successor is not None)

    def join(self) -> Progress:
        """For a new member: build the model, wait until the version is active, and get the state."""
        self._framework.prepare()
        self._job.wait_until_active(in_place=True)
        try:
            return self._form(NOTHING_YET)
        except CannotTakePartError as error:
            self._job.give_up(str(error), error.exit_code)
        except UnavailableError as error:
            return self.go_on(str(error), NOTHING_YET)

    def go_on(self, reason: str, progress: Progress) -> Progress:
        """Wait for the version in which this process continues, and form its group.

        Args:
            reason: why the present group is over, for the log.
            progress: the progress of this member.

        Returns:
            The progress of the new group, which is the same in all its members.

        Raises:
            SystemExit: this process does not continue.
        """
        while True:
            successor = self._job.wait_for_successor(reason)
            if successor is None:
                self._job.cluster_lost(reason, patience=0.0)
            self._job.go_on_in(successor)
            try:
                return self._form(progress)
            except CannotTakePartError as error:
                self._job.give_up(str(error), error.exit_code)
            except UnavailableError as error:
                reason = str(error)

    def _form(self, mine: Progress) -> Progress:
        self._framework.regroup(self._find_place())
        events = self._framework.compare(mine.events)
        newest = max(events)
        if newest == NO_STATE:
            raise UnavailableError(f"no member of version {self._job.version} holds the model")
        if min(events) == newest:
            return mine
        numbers = self._framework.broadcast(
            mine.to_numbers(), events.index(newest), load=mine.events < newest
        )
        return Progress.of_numbers(numbers)
