"""The ends of epochs in a collective job: which epochs have ended, what their validations gave, and the best
model so far.

An end of an epoch is an event of the whole world, as a step is: it has taken place in all members, or in
none. So it is a part of the progress that members compare and exchange when they change
(`edl_workflows.training.collective.regrouping`), and a part of each checkpoint. A process that starts from a
checkpoint between the last step of an epoch and its end validates that epoch again.

All members validate, because they would only wait otherwise, and because the processes of a replica group
compute together. What counts are the numbers of rank 0, so that all members take the same decisions.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from edl_workflows.core.exceptions import CheckpointError, EdlError, InvalidError
from edl_workflows.core.protocol.training import CheckpointTicket
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages

BEST = "best"
"""Folder of the best checkpoint within the store of the others."""
_MANTISSA_BITS = 53
_NOT_FINITE = (math.nan, math.inf, -math.inf)
_NOT_FINITE_EXPONENT = 5000
"""Exponent that no number has; added to it is the place in `_NOT_FINITE`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpochEnds:
    """What the ends of epochs have given so far.

    Attributes:
        ended: epochs that have ended.
        stopped: whether training ends before its last epoch.
        value: the monitored metric of the newest validation.
        best: the best value of the monitored metric.
        best_epoch: its epoch; 0: there was no validation.
    """

    ended: int = 0
    stopped: bool = False
    value: float = math.nan
    best: float = math.nan
    best_epoch: int = 0

    @property
    def since_best(self) -> int:
        """Epochs that have ended since the best one; 0 without a validation."""
        return self.ended - self.best_epoch if self.best_epoch else 0

    def improves(self, value: float, *, maximize: bool) -> bool:
        """Whether a value is better than all before. One that is not a number never is."""
        if math.isnan(value):
            return False
        return not self.best_epoch or (value > self.best if maximize else value < self.best)

    def after(self, epoch: int, value: float, *, maximize: bool) -> Self:
        """The same after the end of an epoch with a validation."""
        cls, better = type(self), self.improves(value, maximize=maximize)
        best, best_epoch = (value, epoch) if better else (self.best, self.best_epoch)
        return cls(epoch, self.stopped, value, best, best_epoch)

    def to_numbers(self) -> list[int]:
        """As whole numbers, which any adapter can broadcast."""
        return [
            self.ended,
            int(self.stopped),
            *to_numbers(self.value),
            *to_numbers(self.best),
            self.best_epoch,
        ]

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> Self:
        """The inverse of `to_numbers`."""
        ended, stopped, *values, best_epoch = numbers
        return cls(ended, bool(stopped), of_numbers(values[:2]), of_numbers(values[2:]), best_epoch)

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any], where: str) -> Self:
        """What a checkpoint holds, as JSON of the fields.

        Raises:
            CheckpointError: it is something else.
        """
        try:
            return cls(**saved)
        except TypeError as error:
            raise CheckpointError(f"{where}: can't read which epochs have ended: {saved}") from error


def to_numbers(value: float) -> tuple[int, int]:
    """A number as two whole numbers that any adapter can send exactly, even as 64-bit floating point."""
    if not math.isfinite(value):
        place = 0 if math.isnan(value) else _NOT_FINITE.index(value)
        return 0, _NOT_FINITE_EXPONENT + place
    mantissa, exponent = math.frexp(value)
    return int(math.ldexp(mantissa, _MANTISSA_BITS)), exponent


def of_numbers(numbers: Sequence[int]) -> float:
    """The inverse of `to_numbers`."""
    mantissa, exponent = numbers
    if exponent >= _NOT_FINITE_EXPONENT:
        return _NOT_FINITE[exponent - _NOT_FINITE_EXPONENT]
    return math.ldexp(mantissa, exponent - _MANTISSA_BITS)


def choose_monitored(metrics: Mapping[str, float], monitor: str) -> str:
    """The name of the metric that decides: `monitor`, or the only one.

    Raises:
        InvalidError: there is none, or no such metric.
    """
    name = monitor or (next(iter(metrics)) if len(metrics) == 1 else "")
    if name not in metrics:
        raise InvalidError(
            f"the validation gave {', '.join(metrics) or 'nothing'}, not {name or 'one metric'}: name the "
            "metric that decides which epoch is the best, as in validate(evaluate, monitor='val_loss')"
        )
    return name


class BestCheckpoint:
    """The checkpoint of the best epoch, which is kept beside the newest ones.

    Args:
        store: the store of the job's checkpoints.
        job: identifies the job; the same in all members.
    """

    def __init__(self, store: CheckpointStore, job: str) -> None:
        self._store = open_store(f"{store.place.rstrip('/')}/{BEST}", keep=1)
        self._job = job

    def save(self, stages: TwoStages, version: int, *, part: bool) -> None:
        """Save the state; training waits for it. A failure is logged: training continues.

        Args:
            stages: how the job's other checkpoints are saved.
            version: cluster version of this process.
            part: whether all members save, each its part.
        """
        first = FirstStage(TwoStages(stages.state, self._store, part=stages.part), None, version, self._job)
        try:
            if part:
                first.save_part(CheckpointTicket(id=""), persist=True)
            else:
                first.save(CheckpointTicket(id=""), persist=True, wait=True)
        except (EdlError, OSError) as error:
            log.warning("the checkpoint of the best epoch could not be saved: %s", error)
