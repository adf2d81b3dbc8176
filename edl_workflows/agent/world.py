"""Collective training: a loop that all members of a cluster version run in step, whatever framework they train with.

The members take each step together, and may only stop together: a member that stops alone leaves the others in a collective
operation that never ends. Each hears of the master's wishes at its own time, so two numbers ride along in the reduction of
every step: how many members were asked to drain, and how many were told to end. All read the same sums and so act alike
after the same step, the *step boundary*:

* Somebody was asked to drain: each asks the master afresh, and if that is what it says stops, reports it, and waits for its
  successor to take over. The chief saves when the master says so.
* Somebody was told to end: the chief saves. Then those that were told end; the others wait for the version without them.

What a framework brings is `Framework`: TensorFlow's is `edl_workflows.agent.mwms`. Another needs no more than that.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from edl_workflows.agent.checkpoints import CheckpointStore
from edl_workflows.agent.job import TERMINATED, Job
from edl_workflows.agent.sampler import Dataset, ElasticSampler
from edl_workflows.agent.two_stages import TwoStages
from edl_workflows.exceptions import CheckpointError, InvalidError, UnavailableError
from edl_workflows.protocol import addresses
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.nodes import CLUSTER_LOST_EXIT_CODE

if TYPE_CHECKING:
    from edl_workflows.agent.tensors import Array, State

DATA = "data"
"""Key of the data position in a saved state's metadata."""

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Wishes:
    """What the master wants of a member; reduced: of how many members it wants it.

    Attributes:
        drain: asked to stop at the next step boundary.
        leave: told to end.
    """

    drain: float = 0.0
    leave: float = 0.0


@dataclass(frozen=True)
class Reduced:
    """What all members know after a step.

    Attributes:
        loss: mean over the records of the global batch.
        wishes: sums over the members.
    """

    loss: float
    wishes: Wishes


@dataclass(frozen=True)
class Place:
    """Where a member stands in its group.

    Attributes:
        version: of the cluster.
        rank: of the member.
        addresses: of all members by rank, as they are reached from here; the member's own is where it listens.
    """

    version: int
    rank: int
    addresses: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.addresses)


class Framework(Protocol):
    """What an adapter brings.

    `join`, `broadcast`, `step` and `meet` are collective: all members call them in the same order. They raise
    UnavailableError when the group is broken.
    """

    def join(self, place: Place) -> None:
        """Build the model, form the group with the other members of the version, and rehearse: do once what comes later,
        and undo it. All this while the version before still trains.
        """
        ...

    def state(self, step: int, metadata: Mapping[str, str]) -> "State":
        """Model and optimizer as they are, to be saved."""
        ...

    def load(self, tensors: Mapping[str, "Array"]) -> None:
        """Take over what was saved.

        Raises:
            CheckpointError: it is another model's.
        """
        ...

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        """Give rank 0's model and optimizer to all members, and these numbers of rank 0."""
        ...

    def step(self, mini_batches: Sequence[Any], wishes: Wishes) -> Reduced:
        """Sum the gradients of the mini-batches, which may be none, then those of all members, and update once with the sum
        divided by the number of records of all members. So it makes no difference who computed which mini-batch.
        """
        ...

    def meet(self) -> None:
        """Return when all members have come here."""
        ...


@dataclass(frozen=True)
class Saving:
    """How checkpoints are saved.

    Attributes:
        store: where they go; shared by all members that may become rank 0.
        every_seconds: between periodic ones; None: only on the master's request and at the end.
        memory_seconds: between copies in the node's shared memory; None: only of what goes to storage.
        replicate: whether another node's agent holds a copy, too.
    """

    store: CheckpointStore
    every_seconds: float | None = 600.0
    memory_seconds: float | None = None
    replicate: bool = False


class World:
    """A member's running training. Made by `training`; iterate over it for what to compute.

    Attributes:
        job: the member's.
        framework: that it trains with.
        global_step: steps that were made, over all versions.
        loss: of the newest step, over the global batch.
    """

    def __init__(self, job: Job, framework: Framework, dataset: Dataset, saving: Saving) -> None:
        self.job = job
        self.framework = framework
        self._place = _place(job)
        self.global_step = 0
        self.loss = float("nan")
        self._sampler = ElasticSampler(dataset, job.cluster.max_workers)
        self._saving = saving
        self._asked = Wishes()
        self._agreed = Wishes()

    @property
    def rank(self) -> int:
        """Of this member."""
        return self._place.rank

    @property
    def size(self) -> int:
        """Number of members."""
        return self._place.size

    @property
    def epoch(self) -> int:
        """That the next step belongs to, from 1."""
        return self._sampler.epoch

    def __iter__(self) -> Iterator[tuple[Sequence[int], ...]]:
        """Record indices of this member's mini-batches, step by step, until all epochs are over.

        Each must be answered by one `step`. Between two of them the master's wishes are served.

        Raises:
            SystemExit: told to end, or another version takes over.
        """
        while not self._sampler.done:
            made = self.global_step
            yield self._sampler.mini_batches(self.rank, self.size)
            if self.global_step != made + 1:
                raise InvalidError(
                    f"{self.global_step - made} steps with one step's mini-batches: call step once"
                )
            if not self._sampler.done:  # else all that is left is to save and to end, which all do
                self._boundary()

    def step(self, mini_batches: Sequence[Any]) -> tuple[int, float]:
        """Make one step together with the other members, and report it.

        Args:
            mini_batches: the framework's inputs for each of the mini-batches that the iteration gave.

        Returns:
            The global step after it, and the mean loss of the global batch.

        Raises:
            SystemExit: the group broke, and this process with it; the next one goes on.
        """
        self._asked = Wishes(drain=float(self.job.drain_requested), leave=float(self.job.terminated))
        reduced = self._together(lambda: self.framework.step(mini_batches, self._asked))
        self._agreed = reduced.wishes
        self._sampler.advance()
        self.global_step += 1
        self.loss = reduced.loss
        self.job.report_step(self.global_step, self.loss, self._sampler.records_done)
        return self.global_step, self.loss

    def enter(self) -> None:
        """Prepare, wait until this member's version trains, and get the state: rank 0 restores, the others hear it from it."""
        self._together(lambda: self.framework.join(self._place))
        self.job.wait_until_active()
        if self.rank == 0:
            checkpoint = self.job.start_from(self._saving.store)
            if checkpoint is not None:
                self._restore(checkpoint)
        sampler = self._sampler
        numbers = [self.global_step, sampler.epoch, sampler.completed]
        self.global_step, epoch, completed = self._together(lambda: self.framework.broadcast(numbers))
        sampler.go_to(epoch, completed)
        saving = self._saving
        self.job.save_in_two_stages(
            TwoStages(
                self._state, saving.store, saving.every_seconds, saving.memory_seconds, saving.replicate
            )
        )

    def finish(self) -> None:
        """Save what was trained, and end together: no member is done before the last checkpoint is."""
        self.job.save_last(always=True)
        self._together(self.framework.meet)
        self.job.close()

    def _boundary(self) -> None:
        if self._agreed.leave:
            self._let_go()
        elif self._agreed.drain:
            self.job.drain()
        elif self.job.should_checkpoint():
            self.job.checkpoint()

    def _let_go(self) -> NoReturn:
        """Members were told to end. They stay until the chief has saved: while one is gone nobody can save any more."""
        if self.job.is_chief:
            self.job.checkpoint(stored=True)
        self._together(self.framework.meet)
        if not self._asked.leave:
            self.job.cluster_lost(f"{self._agreed.leave:.0f} of {self.size} members were told to end")
        self.job.close()
        raise SystemExit(TERMINATED)

    def _together(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except UnavailableError as error:
            if self.job.preparing:
                # Nothing is lost: the agent starts it again, and the group forms then.
                log.warning("cluster version %d did not come together: %s", self.job.version, error)
                self.job.close()
                raise SystemExit(CLUSTER_LOST_EXIT_CODE) from error
            self.job.cluster_lost(str(error))

    def _restore(self, checkpoint: CheckpointRef) -> None:
        try:
            with self.job.state(checkpoint, self._saving.store) as saved:
                self._sampler.load_state_dict(_position(saved.metadata, checkpoint))
                self.framework.load(saved.tensors)
        except CheckpointError as error:
            self.job.checkpoint_damaged(checkpoint, error)
        self.global_step = checkpoint.step
        log.info("restored step %d from %s", checkpoint.step, checkpoint.uri)

    def _state(self) -> "State":
        position = json.dumps(self._sampler.state_dict())
        return self.framework.state(self.global_step, {DATA: position})


@contextlib.contextmanager
def training(job: Job, framework: Framework, dataset: Dataset, saving: Saving) -> Iterator[World]:
    """Train with the other workers of a collective job.

    On entry model and optimizer are those of the checkpoint that the master names; else of the newest in the folder; else
    the initial ones of rank 0. When the block ends without an error rank 0 saves.

    Args:
        job: from `edl_workflows.agent.connect`.
        framework: an adapter.
        dataset: what to train on; the same in all members.
        saving: where checkpoints go, and how often.

    Raises:
        InvalidError: the job is not collective, or this node is no member, or the checkpoint is of other data.
        SystemExit: told to end, or the checkpoint to start from is damaged (`Job.start_from`).
    """
    world = World(job, framework, dataset, saving)
    world.enter()
    yield world
    world.finish()


def _place(job: Job) -> Place:
    cluster = job.cluster
    rank = cluster.rank_of(job.node.type, job.node.id)
    if not cluster.collective or rank is None:
        raise InvalidError(
            f"{job.node} is no member of a collective version of job {job.name}: its distributionStrategy must be "
            "AllreduceStrategy, and only workers train; an evaluator follows a CheckpointStore"
        )
    reached = [addresses.resolve(member.address) for member in cluster.workers]
    reached[rank] = job.environment.listen_address(cluster.version)
    return Place(cluster.version, rank, tuple(reached))


def _position(metadata: Mapping[str, str], checkpoint: CheckpointRef) -> Any:
    try:
        return json.loads(metadata[DATA])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.uri}: holds no data position of a collective job") from error
