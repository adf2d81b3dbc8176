"""PyTorch's ``DataLoader`` for the training loop of a collective job: it provides worker processes,
prefetching, collation and pinned memory, and follows the job's position in the data.

::

    with training(job, build, Dataset(len(images), batch_size=32, num_epochs=10), options) as run:
        for mini_batches in ElasticDataLoader(run, images, num_workers=4, pin_memory=True):
            run.step(mini_batches)

Records that are read ahead don't count as trained: the position (`World.records_done`) moves only when a step
is made. Each turn of the loop compares the records that it must train with those that were read. If they
differ, because the members have changed, everything that was read ahead is dropped, and the right records are
read. So no record is lost or trained twice, whatever was in the workers' queues.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from edl_workflows.core.exceptions import InvalidError

MiniBatches = tuple[Sequence[int], ...]
_DECIDED_BY_JOB = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
"""Arguments of ``DataLoader`` that the job's data set and position replace."""


class Turns(Protocol):
    """The part of `edl_workflows.training.collective.world.World` that the loader needs."""

    def __iter__(self) -> Iterator[MiniBatches]:
        """The indices of the records in this member's mini-batches, for each turn of the loop."""
        ...

    @property
    def steps_left(self) -> int:
        """Number of turns that are left; -1 if there is no last one."""
        ...

    def upcoming(self) -> Iterator[MiniBatches]:
        """The same from the next turn on, assuming that the members stay the same."""
        ...


class ElasticDataLoader:
    """Loads the mini-batches of each turn of the training loop ahead. Iterate over it instead of over `run`.

    Args:
        run: the running training.
        records: a data set with ``__getitem__`` (or ``__getitems__``) and the same indices as the training's
            `Dataset`. Its records, or what `collate_fn` makes of them, are dictionaries or tuples of what the
            model's `losses` takes.
        options: arguments of ``torch.utils.data.DataLoader``: ``num_workers``, ``collate_fn``,
            ``pin_memory``, ``prefetch_factor``, ``multiprocessing_context``, ``worker_init_fn``, … Workers
            are kept between epochs.

    Raises:
        InvalidError: an option determines which records are loaded, which only `Dataset` may do.
    """

    def __init__(self, run: Turns, records: Any, **options: Any) -> None:
        if taken := [name for name in _DECIDED_BY_JOB if name in options]:
            raise InvalidError(
                f"{', '.join(taken)}: the job decides which records a member loads; set batch_size, shuffle "
                "and seed of the training's Dataset"
            )
        self._run = run
        self._sampler = _BatchSampler(run)
        # The workers' seeds come from a separate generator, so that a restart of the workers does not change
        # the model's random numbers, such as those of dropout.
        settings = {"generator": torch.Generator(), "persistent_workers": options.get("num_workers", 0) > 0}
        self._ahead: Iterator[Any] = iter(())  # kept from one epoch to the next
        self._loader = DataLoader(records, batch_sampler=self._sampler, **{**settings, **options})

    def __len__(self) -> int:
        """Number of turns that the loop has left, in each of which `World.step` makes one step: of the
        present epoch within `World.epochs`, else of all. At the beginning of an epoch that is its number of
        steps, whatever the number of members; in a resumed epoch, the rest.

        Raises:
            TypeError: `Dataset.num_epochs` is endless.
        """
        if self._run.steps_left < 0:
            raise TypeError("an endless training has no length: loop over run.epochs()")
        return self._run.steps_left

    def __iter__(self) -> Iterator[list[Any]]:
        """The collated mini-batches of each turn, within `World.epochs` of one epoch. Mini-batches without
        records, at the end of an epoch, are left out. Call `World.step` once for each turn."""
        for mini_batches in self._run:
            turn = [list(records) for records in mini_batches if len(records)]
            if not self._sampler.begins_with(turn):
                self._ahead = iter(self._loader)  # drops what was read ahead, and reads them anew
            loaded = []
            for _ in turn:
                loaded.append(next(self._ahead))
                self._sampler.drop_first()
            yield loaded


class _BatchSampler:
    """The loader's batch sampler: the mini-batches that this member will train if the members stay the same.

    Args:
        run: the running training.
    """

    def __init__(self, run: Turns) -> None:
        self._run = run
        self._source: Iterator[list[int]] = iter(())
        self._upcoming: deque[list[int]] = deque()
        self._given = 0
        """Number of upcoming mini-batches, counted from the first, that the loader has requested."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the mini-batches from the run's present turn on."""
        self._source = (list(records) for turn in self._run.upcoming() for records in turn if len(records))
        self._upcoming.clear()
        self._given = 0
        return self._give()

    def begins_with(self, turn: Sequence[list[int]]) -> bool:
        """Whether these are the next mini-batches."""
        self._extend(len(turn))
        return list(islice(self._upcoming, len(turn))) == turn

    def drop_first(self) -> None:
        """Forget the first mini-batch: the loader has returned it."""
        self._upcoming.popleft()
        self._given -= 1

    def _give(self) -> Iterator[list[int]]:
        while True:
            self._extend(self._given + 1)
            if len(self._upcoming) == self._given:
                return
            self._given += 1
            yield self._upcoming[self._given - 1]

    def _extend(self, length: int) -> None:
        """Hold at least `length` mini-batches, or as many as there are."""
        self._upcoming.extend(islice(self._source, max(0, length - len(self._upcoming))))
