"""Which records each member of a collective job takes in each step, however many members there are.

The global batch is fixed: N mini-batches of `Dataset.batch_size` records, N being the most workers of the job. The
mini-batches of a step are cut from the epoch's order one after the other, and dealt out by rank as
`mini_batch_counts` says. So where training stands is a place in the order alone; the number of
members is no part of it. When that changes, what is left of the epoch is split among the new members by itself, and no
record is seen twice but those of steps after the checkpoint from which training goes on.

Pure: every member works its share out by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl_workflows.exceptions import InvalidError
from edl_workflows.protocol.permutation import Permutation

State = dict[str, int | str]
"""What `ElasticSampler.state_dict` gives."""


@dataclass(frozen=True)
class Dataset:
    """The training data of a collective job; the same in all members.

    Attributes:
        size: records of an epoch.
        batch_size: records of a mini-batch: what one of the most workers computes in a step.
        num_epochs: how often all records are seen; 0 or less: endless.
        shuffle: each epoch in an order of its own.
        seed: of the shuffle. Same seed, same order, whatever process or restart.
    """

    size: int
    batch_size: int
    num_epochs: int = 1
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.batch_size < 1:
            raise InvalidError(
                f"a data set of {self.size} records in mini-batches of {self.batch_size}: both must be at least 1"
            )


class ElasticSampler:
    """A place in the data set, and the records that follow it.

    Args:
        dataset: what to sample.
        max_workers: N, mini-batches of a global batch.

    Attributes:
        epoch: from 1; the one that the next step belongs to.
        completed: records of this epoch that are done.
    """

    def __init__(self, dataset: Dataset, max_workers: int) -> None:
        if max_workers < 1:
            raise InvalidError(f"a global batch of {max_workers} mini-batches: it takes at least 1")
        self._dataset = dataset
        self._max_workers = max_workers
        self.epoch = 1
        self.completed = 0
        self._order = self._shuffled()

    @property
    def done(self) -> bool:
        """Whether all epochs are over."""
        return 0 < self._dataset.num_epochs < self.epoch

    @property
    def records_done(self) -> int:
        """Of all epochs."""
        return (self.epoch - 1) * self._dataset.size + self.completed

    @property
    def batch_records(self) -> int:
        """Records of the next step, of all members together; fewer in the last of an epoch."""
        return min(self._max_workers * self._dataset.batch_size, self._dataset.size - self.completed)

    def mini_batches(self, rank: int, members: int) -> tuple[Sequence[int], ...]:
        """The records of a member's mini-batches in the next step.

        In the last step of an epoch all mini-batches are shorter alike, and may be empty.

        Args:
            rank: of the member.
            members: how many there are.

        Raises:
            InvalidError: there are more members than mini-batches, or no such rank.
        """
        counts = mini_batch_counts(self._max_workers, members)
        if not 0 <= rank < members:
            raise InvalidError(f"rank {rank} among {members} members: 0 to {members - 1} are possible")
        first = sum(counts[:rank])
        return tuple(self._mini_batch(number) for number in range(first, first + counts[rank]))

    def advance(self) -> None:
        """The step is made: on to the next."""
        self.completed += self.batch_records
        if self.completed == self._dataset.size:
            self.epoch += 1
            self.completed = 0
            self._order = self._shuffled()

    def state_dict(self) -> State:
        """The place, and which order it is a place in."""
        data = self._dataset
        return {"epoch": self.epoch, "completed": self.completed, **_order(data)}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Go to the place that `state_dict` gave, also that of a job with another batch size, or of more epochs.

        Raises:
            InvalidError: it is no such place, or one in another order of records.
        """
        expected = _order(self._dataset)
        found = {name: state.get(name) for name in expected}
        if found != expected:
            raise InvalidError(
                f"the checkpoint's data are {found}, the program's {expected}: give it the same again"
            )
        epoch, completed = state.get("epoch"), state.get("completed")
        if not isinstance(epoch, int) or not isinstance(completed, int):
            raise InvalidError(f"no place in a data set: epoch {epoch!r}, completed {completed!r}")
        self.go_to(epoch, completed)

    def go_to(self, epoch: int, completed: int) -> None:
        """Go to a place.

        Raises:
            InvalidError: there is no such place.
        """
        if epoch < 1 or not 0 <= completed < self._dataset.size:
            raise InvalidError(f"epoch {epoch} of {self._dataset.size} records has no place {completed}")
        self.epoch, self.completed = epoch, completed
        self._order = self._shuffled()

    def _mini_batch(self, number: int) -> Sequence[int]:
        each, rest = divmod(self.batch_records, self._max_workers)
        start = self.completed + number * each + min(number, rest)
        places = range(start, start + each + (number < rest))
        return places if self._order is None else [self._order[place] for place in places]

    def _shuffled(self) -> Permutation | None:
        data = self._dataset
        return Permutation(data.size, f"{data.seed}/{self.epoch}") if data.shuffle else None


def _order(dataset: Dataset) -> State:
    """What the order of records depends on."""
    return {"size": dataset.size, "shuffle": int(dataset.shuffle), "seed": dataset.seed}


def mini_batch_counts(max_workers: int, workers: int) -> tuple[int, ...]:
    """How many mini-batches each worker computes in a step, by rank: ⌊N/N0⌋ + (1 if rank < N mod N0).

    This is the "fixed batch size" of DLRover's design.

    Args:
        max_workers: N, which is also the number of mini-batches in a global batch.
        workers: N0, the present number of workers.

    Raises:
        InvalidError: there is no worker, or more than N: some would have nothing to compute.
    """
    if not 1 <= workers <= max_workers:
        raise InvalidError(f"{workers} workers can't share a batch of {max_workers}: 1 to {max_workers} can")
    each, rest = divmod(max_workers, workers)
    return tuple(each + (rank < rest) for rank in range(workers))
