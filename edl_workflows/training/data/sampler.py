"""Decides which records each member of a collective job trains in each step, for any number of members.

The global batch is fixed: N mini-batches of at most `Dataset.batch_size` records, where N is the maximum
number of workers, or follows from `Dataset.global_batch`. A step's mini-batches are consecutive parts of the
epoch's order of records, and `mini_batch_counts` distributes them among the ranks. So the position in the
data is just a place in that order, whatever the number of members. When the number changes, the rest of the
epoch is split among the new members. Only the records of steps after a restored checkpoint are trained twice.

Pure: every member computes its share by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.permutation import Permutation

State = dict[str, int | str]
"""Type of `ElasticSampler.state_dict`."""


@dataclass(frozen=True)
class Dataset:
    """The training data of a collective job; the same in all members.

    Attributes:
        size: number of records in an epoch.
        batch_size: number of records in a mini-batch, that is, in one forward pass.
        num_epochs: number of passes over all records; 0 or less: endless.
        shuffle: whether each epoch has its own random order.
        seed: seed of the shuffle. The same seed gives the same order in every process and after every
            restart.
        global_batch: number of records in a step of all members together, whatever their number; they
            accumulate as many mini-batches as it takes. 0: one mini-batch for each of the maximum number of
            workers, so that the global batch depends on ``rendezvous.maxNodes``.
    """

    size: int
    batch_size: int
    num_epochs: int = 1
    shuffle: bool = True
    seed: int = 0
    global_batch: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.batch_size < 1 or self.global_batch < 0:
            raise InvalidError(
                f"a data set of {self.size} records in mini-batches of {self.batch_size} and steps of "
                f"{self.global_batch}: the first two must be at least 1, the third at least 0"
            )

    def count_mini_batches(self, max_workers: int) -> int:
        """Number of mini-batches in a step.

        Raises:
            InvalidError: some of the maximum number of workers would have nothing to compute.
        """
        count = -(-self.global_batch // self.batch_size) or max_workers
        if not 1 <= max_workers <= count:
            raise InvalidError(
                f"a step of {self.global_batch} records has {count} mini-batches of {self.batch_size}, and "
                f"rendezvous.maxNodes is {max_workers}: each worker needs at least one; use a larger "
                "global_batch, a smaller batch_size, or fewer workers"
            )
        return count

    def count_steps(self, max_workers: int) -> int:
        """Number of steps of a whole epoch, such as for a schedule of the learning rate. With `global_batch`
        it is the same for any maximum number of workers (`TrainingCluster.max_workers`)."""
        count = self.count_mini_batches(max_workers)
        return -(-self.size // (self.global_batch or count * self.batch_size))


class ElasticSampler:
    """A position in the data set, and the records that follow it.

    Args:
        dataset: what to sample.
        max_workers: the maximum number of workers.

    Attributes:
        epoch: epoch of the next step, counted from 1.
        completed: number of records of this epoch that are done.
    """

    def __init__(self, dataset: Dataset, max_workers: int) -> None:
        self._dataset = dataset
        self._max_workers = max_workers
        self._count = dataset.count_mini_batches(max_workers)
        self.epoch = 1
        self.completed = 0
        self._order = self._shuffled()

    @property
    def done(self) -> bool:
        """Whether all epochs are done."""
        return 0 < self._dataset.num_epochs < self.epoch

    @property
    def records_done(self) -> int:
        """Records done in all epochs."""
        return (self.epoch - 1) * self._dataset.size + self.completed

    @property
    def records_total(self) -> int:
        """Records of all epochs; 0 if there is no last one."""
        return max(0, self._dataset.num_epochs) * self._dataset.size

    @property
    def batch_records(self) -> int:
        """Records of all members in the next step; fewer in the last step of an epoch."""
        return min(self._step_records, self._dataset.size - self.completed)

    def count_steps_left(self, epoch: int = 0) -> int:
        """Number of steps from here to the end of an epoch, 0 if it is over; by default to the end of the
        last one, -1 if there is none."""
        last = epoch or self._dataset.num_epochs
        if last < 1:
            return -1
        if self.epoch > last:
            return 0
        left = -(-(self._dataset.size - self.completed) // self._step_records)
        return left + (last - self.epoch) * self._dataset.count_steps(self._max_workers)

    def mini_batches(self, rank: int, members: int) -> tuple[Sequence[int], ...]:
        """The records of a member's mini-batches in the next step.

        In the last step of an epoch, all mini-batches are shorter by the same share, and some may be empty.

        Args:
            rank: rank of the member.
            members: number of members.

        Raises:
            InvalidError: there are more members than mini-batches, or there is no such rank.
        """
        counts = mini_batch_counts(self._count, members)
        if not 0 <= rank < members:
            raise InvalidError(f"rank {rank} among {members} members: 0 to {members - 1} are possible")
        first = sum(counts[:rank])
        return tuple(self._mini_batch(number) for number in range(first, first + counts[rank]))

    def upcoming(self, rank: int, members: int) -> Iterator[tuple[Sequence[int], ...]]:
        """Yield `mini_batches` of the next step and of all later steps, assuming that the members stay the
        same. The position is not changed.

        Raises:
            InvalidError: see `mini_batches`.
        """
        ahead = ElasticSampler(self._dataset, self._max_workers)
        ahead.go_to(self.epoch, self.completed)
        while not ahead.done:
            yield ahead.mini_batches(rank, members)
            ahead.advance()

    def advance(self) -> None:
        """Move on to the next step."""
        self.completed += self.batch_records
        if self.completed == self._dataset.size:
            self.epoch += 1
            self.completed = 0
            self._order = self._shuffled()

    def state_dict(self) -> State:
        """The position, and the parameters on which the order of records depends."""
        data = self._dataset
        return {"epoch": self.epoch, "completed": self.completed, **_order(data)}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Go to a position from `state_dict`. It may come from a job with another batch size or more epochs.

        Raises:
            InvalidError: it is not such a position, or it refers to another order of records.
        """
        expected = _order(self._dataset)
        saved_order = {name: state.get(name) for name in expected}
        if saved_order != expected:
            raise InvalidError(
                f"the checkpoint's data are {saved_order}, the program's {expected}: use the same size, "
                "shuffle and seed"
            )
        epoch, completed = state.get("epoch"), state.get("completed")
        if not isinstance(epoch, int) or not isinstance(completed, int):
            raise InvalidError(f"not a position in a data set: epoch {epoch!r}, completed {completed!r}")
        self.go_to(epoch, completed)

    def go_to(self, epoch: int, completed: int) -> None:
        """Go to a position.

        Raises:
            InvalidError: there is no such position.
        """
        if epoch < 1 or not 0 <= completed < self._dataset.size:
            raise InvalidError(f"epoch {epoch} of {self._dataset.size} records has no position {completed}")
        self.epoch, self.completed = epoch, completed
        self._order = self._shuffled()

    @property
    def _step_records(self) -> int:
        return self._dataset.global_batch or self._count * self._dataset.batch_size

    def _mini_batch(self, number: int) -> Sequence[int]:
        each, rest = divmod(self.batch_records, self._count)
        start = self.completed + number * each + min(number, rest)
        places = range(start, start + each + (number < rest))
        return places if self._order is None else [self._order[place] for place in places]

    def _shuffled(self) -> Permutation | None:
        data = self._dataset
        return Permutation(data.size, f"{data.seed}/{self.epoch}") if data.shuffle else None


def _order(dataset: Dataset) -> State:
    """The parameters on which the order of records depends."""
    return {"size": dataset.size, "shuffle": int(dataset.shuffle), "seed": dataset.seed}


def mini_batch_counts(mini_batches: int, workers: int) -> tuple[int, ...]:
    """The number of mini-batches that each worker computes in a step, by rank: ⌊N/N0⌋ + (1 if rank < N mod
    N0).

    This is the "fixed batch size" of DLRover's design.

    Args:
        mini_batches: N, the number of mini-batches in a global batch.
        workers: N0, the present number of workers.

    Raises:
        InvalidError: there is no worker, or more than N: some would have nothing to compute.
    """
    if not 1 <= workers <= mini_batches:
        raise InvalidError(
            f"{workers} workers can't share a batch of {mini_batches}: 1 to {mini_batches} can"
        )
    each, rest = divmod(mini_batches, workers)
    return tuple(each + (rank < rest) for rank in range(workers))
