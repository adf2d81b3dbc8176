"""One job's training in simulated time."""

from dataclasses import dataclass
from typing import Protocol

from edl_workflows.simulator.application import Application, BatchSplit, GradientNoise
from edl_workflows.simulator.throughput import Placement, StepTime
from edl_workflows.simulator.workload import WorkloadJob


@dataclass(frozen=True)
class TrainingMeasurement:
    """What a job measures of its own training.

    Attributes:
        placement: replicas on each node.
        split: how the batch is divided.
        step: the duration of a step without accumulation.
        gradient: the gradient of the current epoch.
    """

    placement: Placement
    split: BatchSplit
    step: StepTime
    gradient: GradientNoise


class BatchAgent(Protocol):
    """Chooses a job's batch from what the job measures."""

    def split(self, placement: Placement) -> BatchSplit:
        """The batch on this placement; called when training starts there, and after each epoch."""
        ...

    def observe(self, measurement: TrainingMeasurement) -> None:
        """Learn from a measurement; called whenever one of its parts changed."""
        ...


@dataclass(frozen=True)
class FixedBatch:
    """The agent of a job whose user has chosen the batch."""

    application: Application
    batch_size: int

    def split(self, placement: Placement) -> BatchSplit:
        """The same batch on any placement."""
        return self.application.split(self.batch_size, sum(placement))

    def observe(self, measurement: TrainingMeasurement) -> None:
        """Do nothing: the batch does not depend on it."""


class SimulatedJob:
    """One job's training.

    Args:
        spec: the job as submitted.
        application: what it trains.
        agent: chooses its batch.
        checkpoint_interval: seconds of training between checkpoints; see `cluster.SimulationSettings`.

    Attributes:
        placement: replicas on each node; empty while it has none.
        epoch: number of complete epochs.
        progress: in steps of the initial batch size.
        started: when it first held a GPU; None before.
        finished: when it completed; None before.
        pending: seconds without a GPU since its submission.
        attained_service: GPU seconds that it held.
        restarts: number of restarts, not counting the first start.
    """

    def __init__(
        self, spec: WorkloadJob, application: Application, agent: BatchAgent, checkpoint_interval: float
    ) -> None:
        self.spec = spec
        self.application = application
        self.agent = agent
        self.placement: Placement = ()
        self.epoch = 0
        self.progress = 0.0
        self.started: float | None = None
        self.finished: float | None = None
        self.pending = 0.0
        self.attained_service = 0.0
        self.restarts = 0
        self._split = BatchSplit(1, 0)
        self._delay = 0.0
        """Seconds left of the restart."""
        self._checkpoint_interval = checkpoint_interval
        self._checkpoint = (0, 0.0)
        self._since_checkpoint = 0.0
        self._observed: TrainingMeasurement | None = None

    def place(self, placement: Placement, now: float, restart_penalty: float) -> None:
        """Save a checkpoint and continue with these replicas, or wait if there are none."""
        self._save()
        self.placement = placement
        if not placement:
            return
        self._split = self.agent.split(placement)
        self._delay = restart_penalty
        if self.started is None:
            self.started = now
        else:
            self.restarts += 1

    def crash(self) -> None:
        """Lose the replicas, and the progress since the last checkpoint."""
        self.epoch, self.progress = self._checkpoint
        self._since_checkpoint = 0.0
        self.placement = ()

    def advance(self, now: float, seconds: float, slowdown: float = 0.0) -> None:
        """Train for a while.

        Args:
            now: the start time.
            seconds: the duration.
            slowdown: fraction of the speed that is lost to interference, 0 to 1.
        """
        if not self.placement:
            self.pending += seconds
            return
        # Saved before training, not after: a failure in this interval must undo it.
        if self._since_checkpoint >= self._checkpoint_interval:
            self._save()
        end = now + seconds
        now += self._restart(seconds)
        began = now
        while now < end and self.finished is None:
            now = self._train(now, end, slowdown)
        self.attained_service += sum(self.placement) * (now - (end - seconds))
        self._since_checkpoint += now - began

    def _restart(self, seconds: float) -> float:
        """Seconds of the interval that the restart takes."""
        delay = min(self._delay, seconds)
        self._delay -= delay
        return delay

    def _train(self, now: float, end: float, slowdown: float) -> float:
        """Train until the epoch is complete or `end` is reached; return the time then."""
        speed = self._goodput() * (1.0 - slowdown)
        target = self.application.progress_after(self.epoch + 1)
        missing = max(0.0, target - self.progress)
        if speed * (end - now) < missing:
            self.progress += speed * (end - now)
            now = end
        else:
            now = min(end, now + missing / speed) if missing else now
            self.progress = target
            self.epoch += 1
            if self.epoch == self.application.epochs:
                self.finished = now
        self._split = self.agent.split(self.placement)
        return now

    def _goodput(self) -> float:
        """Progress per second; the agent observes the measurement."""
        batch_size = self._split.batch_size(sum(self.placement))
        gradient = self.application.gradient(batch_size, self.epoch)
        step = self.application.step_time(self.placement, self._split.local_bsz)
        self.agent.observe(TrainingMeasurement(self.placement, self._split, step, gradient))
        gain = gradient.gain(batch_size / self.application.init_batch_size)
        return gain / step.accumulated(self._split.accumulation)

    def _save(self) -> None:
        self._checkpoint = (self.epoch, self.progress)
        self._since_checkpoint = 0.0
