"""One kind of training: the duration of its steps, and the progress that each step makes.

Progress is counted in steps of the initial batch size. A step with a larger batch is worth several of them,
up to the noise scale of the gradient: with the initial batch M₀, the present batch M, and s = M / M₀,

    gain(s) = (var + sqr) / (var / s + sqr)

where sqr is the squared norm of the gradient and var its variance at M₀ (s times the statistical efficiency
of Pollux, OSDI'21, §3.1). Both were measured in each epoch of trainings at several batch sizes.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.throughput import Placement, StepTime, ThroughputTable


@dataclass(frozen=True)
class ValidationTrace:
    """A measured training at one batch size, with one item per epoch.

    Attributes:
        progress: progress at the end of the epoch, in steps of the initial batch size.
        iterations: steps made by then.
        grad_sqr, grad_var: the gradient's squared norm and variance in the epoch.
    """

    progress: Sequence[float]
    iterations: Sequence[float]
    grad_sqr: Sequence[float]
    grad_var: Sequence[float]


@dataclass(frozen=True)
class GradientNoise:
    """The gradient's squared norm and its variance at the initial batch size."""

    sqr: float
    var: float

    def gain(self, scale: float) -> float:
        """The progress of a step whose batch is `scale` times the initial one; see the module."""
        denominator = self.var / scale + self.sqr
        return (self.var + self.sqr) / denominator if denominator > 0 else 1.0


@dataclass(frozen=True)
class BatchSplit:
    """How a batch is divided.

    Attributes:
        local_bsz: examples in a replica's mini-batch.
        accumulation: number of mini-batches whose gradients are accumulated before the last one, after which
            gradients are exchanged.
    """

    local_bsz: int
    accumulation: int

    def batch_size(self, replicas: int) -> int:
        """Examples in a step of all replicas."""
        return replicas * self.local_bsz * (self.accumulation + 1)


class Application:
    """One kind of training.

    Args:
        name: its name in workloads.
        validation: batch size → the training that was measured with it; all have the same number of epochs.
        throughput: its step times.
        min_local_bsz: smallest mini-batch of a replica.
        max_local_bsz: largest one that fits a GPU.

    Raises:
        InvalidError: there is no measured training, or their numbers of epochs differ.
    """

    def __init__(
        self,
        name: str,
        validation: Mapping[int, ValidationTrace],
        throughput: ThroughputTable,
        *,
        min_local_bsz: int,
        max_local_bsz: int,
    ) -> None:
        epochs = {len(measured.progress) for measured in validation.values()}
        if len(epochs) != 1 or epochs == {0}:
            raise InvalidError(
                f"application {name}: its trainings have {sorted(epochs)} epochs; "
                "give at least one training, and the same number of epochs for all"
            )
        self.name = name
        self.epochs = epochs.pop()
        """A job is complete after this number of epochs."""
        self.min_local_bsz = min_local_bsz
        self.max_local_bsz = max_local_bsz
        self._validation = validation
        self._sizes = sorted(validation)
        self._throughput = throughput
        # Caches: the same few placements and batches are used in each interval of a run.
        self._steps: dict[tuple[Placement, int], StepTime] = {}
        self._gradients: dict[tuple[int, int], GradientNoise] = {}

    @property
    def init_batch_size(self) -> int:
        """The initial batch, whose steps are the unit of progress."""
        return self._sizes[0]

    @property
    def max_batch_size(self) -> int:
        """The largest batch that was measured."""
        return self._sizes[-1]

    def progress_after(self, epochs: int) -> float:
        """The progress at which this number of epochs is complete."""
        if epochs == 0:
            return 0.0
        return min(measured.progress[epochs - 1] for measured in self._validation.values())

    def iterations(self, batch_size: int, epoch: int) -> float:
        """Steps with this batch from the start of training to the end of an epoch, counted from 0."""
        low, high, part = self._neighbours(batch_size)
        return low.iterations[epoch] + (high.iterations[epoch] - low.iterations[epoch]) * part

    def gradient(self, batch_size: int, epoch: int) -> GradientNoise:
        """The gradient in an epoch, counted from 0, of a training with this batch."""
        gradient = self._gradients.get((batch_size, epoch))
        if gradient is None:
            low, high, part = self._neighbours(batch_size)
            gradient = self._gradients[batch_size, epoch] = GradientNoise(
                low.grad_sqr[epoch] + (high.grad_sqr[epoch] - low.grad_sqr[epoch]) * part,
                low.grad_var[epoch] + (high.grad_var[epoch] - low.grad_var[epoch]) * part,
            )
        return gradient

    def step_time(self, placement: Placement, local_bsz: int) -> StepTime:
        """The duration of a step; see `ThroughputTable.step_time`."""
        step_time = self._steps.get((placement, local_bsz))
        if step_time is None:
            step_time = self._steps[placement, local_bsz] = self._throughput.step_time(placement, local_bsz)
        return step_time

    def split(self, batch_size: int, replicas: int) -> BatchSplit:
        """Divide a batch into mini-batches of one size, at most `max_local_bsz`, rounded up.

        The gradient's noise can't be measured from a single mini-batch, so one replica that trains with more
        than the initial batch accumulates at least once.
        """
        local = -(-batch_size // replicas)
        accumulation = -(-local // self.max_local_bsz) - 1
        if replicas == 1 and batch_size > self.init_batch_size:
            accumulation = max(1, accumulation)
        mini_batches = accumulation + 1
        size = min(-(-local // mini_batches), self.max_batch_size // (replicas * mini_batches))
        return BatchSplit(max(1, size), accumulation)

    def _neighbours(self, batch_size: int) -> tuple[ValidationTrace, ValidationTrace, float]:
        """The trainings with the next smaller and larger batch, and the position between them, 0 to 1."""
        size = min(max(batch_size, self._sizes[0]), self._sizes[-1])
        high = self._sizes[bisect_left(self._sizes, size)]
        low = high if high == size else self._sizes[bisect_left(self._sizes, size) - 1]
        part = 0.0 if low == high else (size - low) / (high - low)
        return self._validation[low], self._validation[high], part
