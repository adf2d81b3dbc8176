"""A collective job under a library that has a training loop of its own, such as Hugging Face's ``Trainer``
or Lightning's.

The library's loop asks for one step after the other. `TrainerLoop` makes each of them with the other members
(`edl_workflows.training.collective.world`), as often as it takes when members are lost meanwhile. The library
sees a training in one process: it forms no group, and its optimizer and schedulers do nothing when it steps
them (`SteppedByJob`), because the job's step includes the update.

Used by `edl_workflows.training.frameworks.hugging_face` and `edl_workflows.training.frameworks.lightning`.
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.metrics import LOSS, MAX_METRICS, check_metrics
from edl_workflows.training import connecting
from edl_workflows.training.collective.framework import Saving
from edl_workflows.training.collective.world import World
from edl_workflows.training.data.sampler import Dataset
from edl_workflows.training.data.torch_data import ElasticDataLoader
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining
from edl_workflows.training.job import Job
from edl_workflows.training.options import TrainingOptions

_OF_TORCHRUN = (
    names.ENV_RANK,
    names.ENV_LOCAL_RANK,
    names.ENV_WORLD_SIZE,
    names.ENV_TORCH_MASTER_ADDR,
    names.ENV_TORCH_MASTER_PORT,
)
"""From these variables a library concludes that it is to form a group of the processes."""
_NOT_REPORTED, _SPEEDS = ("epoch", LOSS), ("runtime", "per_second")
_BATCH = "batch"
"""The only input of a mini-batch: a list with the library's batch, whatever its type."""

log = logging.getLogger(__name__)


def connect() -> Job:
    """Connect to the job's master, as `edl_workflows.training.connect` does, and have the library train in
    one process: the variables that ``torchrun`` sets are removed from this process' environment.

    Call it first, in the main thread, before the library looks for a group: that is, before
    ``TrainingArguments``, ``Accelerator`` or Lightning's ``Trainer`` are made.

    Raises:
        InvalidError: not started by ``edl agent run``; the message names the missing variable.
    """
    job = connecting.connect()
    for name in _OF_TORCHRUN:
        os.environ.pop(name, None)
    return job


class TrainerLoop:
    """The steps of a job, made when a library's loop asks for them.

    Args:
        job: from `connect`. build: builds the model, as of
        `edl_workflows.training.frameworks.torch_collective.training`; called by `begin`. Its `losses` takes a
        batch of the loader, and returns the mean loss of it and its weight: the number of records, or of
        whatever the mean is taken over.
        loader: the library's loader of the training data. Its data set, collation and workers are used; the
            records of each step are those of the job.
        batch_size: records of a batch.
        accumulate: batches that one member of the largest group computes in a step.
        seed: of the order of the records.
        options: how to train.

    Raises:
        InvalidError: the loader's data has no length, or an order that the job does not know.
    """

    def __init__(
        self,
        job: Job,
        build: Callable[[], TorchModel],
        loader: "DataLoader[Any]",
        batch_size: int,
        accumulate: int,
        seed: int,
        options: TrainingOptions,
    ) -> None:
        self.records = loader.dataset
        dataset = Dataset(
            _size(loader), batch_size * accumulate, num_epochs=0, shuffle=_shuffles(loader), seed=seed
        )
        self._dataset = dataset
        self._global_batch = dataset.batch_size * job.cluster.max_workers
        self._batch_size = batch_size
        self._loading = _loading(loader, batch_size)
        self.run = World(job, _LibraryTraining(build, options.threads), dataset, Saving.from_options(options))
        self._turns = iter(ElasticDataLoader(self.run, self.records, **self._loading))

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch, whatever the number of members."""
        return -(-self._dataset.size // self._global_batch)

    @property
    def epochs_done(self) -> float:
        """Epochs that are done, with a fraction for the present one."""
        return self.run.records_done / self._dataset.size

    def steps_left(self, epoch: int) -> int:
        """Steps that are left in an epoch, counted from 0: none in one before the job's position."""
        done, completed = divmod(self.run.records_done, self._dataset.size)
        if epoch != done:
            return 0 if epoch < done else self.steps_per_epoch
        return -(-(self._dataset.size - completed) // self._global_batch)

    def example(self) -> dict[str, Any]:
        """The first records as a mini-batch, for the warm-up step."""
        first = [self.records[index] for index in range(min(self._batch_size, self._dataset.size))]
        (piece,) = self._loading["collate_fn"](first)
        return dict(piece)

    def begin(self, steps: int) -> None:
        """Join the other members, with their state or that of the newest checkpoint.

        Args:
            steps: those of the whole training; 0 if nothing limits them.

        Raises:
            SystemExit: asked to exit, or the checkpoint is damaged (`Job.start_from`).
        """
        self.run.enter()
        epochs, more = divmod(steps, self.steps_per_epoch)
        self.run.job.expect_records(epochs * self._dataset.size + more * self._global_batch)

    def advance(self, done: int) -> None:
        """Make the step after `done`, unless this member got the state after it from another.

        Args:
            done: the steps that the library has counted.

        Raises:
            SystemExit: asked to exit, or this process does not go on in the next group.
        """
        while self.run.global_step <= done:
            self.run.step([piece for loaded in next(self._turns) for piece in loaded])

    def finish(self) -> None:
        """Save, and finish together with the other members."""
        self.run.finish()


class SteppedByJob:
    """Stands for an optimizer or scheduler in the library's loop. `step` does nothing, since the job has made
    the step already.

    Args:
        inner: the optimizer or scheduler.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def step(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def reported_metrics(logged: Mapping[str, Any]) -> dict[str, float]:
    """Of what a library has logged: the metrics of the model that the job's status can hold. The job itself
    reports loss, epoch and speed."""
    metrics: dict[str, float] = {}
    for name, value in logged.items():
        if name in _NOT_REPORTED or name.endswith(_SPEEDS) or len(metrics) == MAX_METRICS:
            continue
        try:
            metrics |= check_metrics({name: value})
        except InvalidError as error:
            log.debug("not reported: %s", error)
    return metrics


class _LibraryTraining(TorchTraining):
    """Computes the loss as the library does."""

    def sum_losses(self, inputs: Any) -> tuple[torch.Tensor, float | torch.Tensor]:
        """A mean and its weight, as a sum."""
        (batch,) = inputs[_BATCH]
        mean, weight = self._parts.losses(batch)
        return mean * weight, weight


def _size(loader: "DataLoader[Any]") -> int:
    try:
        return len(loader.dataset)
    except TypeError as error:
        raise InvalidError(
            f"the training data ({type(loader.dataset).__name__}) has no length: elastic training needs a "
            "data set with __len__ and __getitem__"
        ) from error


def _shuffles(loader: "DataLoader[Any]") -> bool:
    """Whether the order of the records is random, as the loader's sampler says."""
    sampler: Any = getattr(loader.batch_sampler, "sampler", None)
    random = isinstance(sampler, RandomSampler) and not sampler.replacement
    if random and len(sampler) == len(loader.dataset):
        return True
    if type(sampler) is SequentialSampler:
        return False
    raise InvalidError(
        f"the training data comes in the order of a {type(sampler).__name__}: elastic training decides "
        "itself which member takes which records; use shuffle=True or False, without a sampler of your own"
    )


def _loading(loader: "DataLoader[Any]", batch_size: int) -> dict[str, Any]:
    """How the loader loads a batch, as options of `ElasticDataLoader`."""
    options = {
        "num_workers": loader.num_workers,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": loader.pin_memory and torch.cuda.is_available(),
    }
    return {**options, "collate_fn": functools.partial(_collate, loader.collate_fn, batch_size)}


def _collate(
    collate: Callable[[Sequence[Any]], Any], size: int, records: Sequence[Any]
) -> list[dict[str, Any]]:
    """A mini-batch as batches of the size that fits a member's memory."""
    cuts = range(0, len(records), size)
    return [{_BATCH: [collate(records[start : start + size])]} for start in cuts]
