"""The input of Brain's algorithms, and statistics that several of them use."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edl_workflows.core.scaling.dlrover.brain.fairness import WorkerClaim
from edl_workflows.core.scaling.dlrover.ps_stages import WorkerPhase
from edl_workflows.core.scaling.dlrover.resources import Advice, OptimizerJob
from edl_workflows.core.scaling.dlrover.sample_window import LEAST, SampleWindow
from edl_workflows.core.scaling.dlrover.samples import JobSample, mean, valid_samples

RECORDS = LEAST
"""How many of the newest samples algorithms look at."""
SHORT_SECONDS = 1_800.0
"""A job is short if one worker would finish it in this time."""


@dataclass(frozen=True)
class TrainingParameters:
    """What a job declares about its training; 0 means unknown.

    Attributes:
        batch_size: records per step.
        dataset_size: records per epoch.
        epochs: number of epochs.
        max_steps: upper limit of the number of steps.
        recv_ops: operations of the graph that receive from parameter servers.
    """

    batch_size: int = 0
    dataset_size: int = 0
    epochs: int = 0
    max_steps: int = 0
    recv_ops: int = 0

    @property
    def steps(self) -> float | None:
        """The number of steps of the job; None if it is unknown."""
        by_records = self.dataset_size * max(self.epochs, 1) / self.batch_size if self.batch_size > 0 else 0.0
        step_counts = [
            steps for steps in (by_records, float(self.max_steps)) if math.isfinite(steps) and steps > 0
        ]
        return min(step_counts, default=None)


@dataclass(frozen=True)
class FormerJob:
    """A former job of the same scenario.

    Attributes:
        completed: whether it succeeded.
        samples: its measurements, in any order.
        oom: names of its nodes that ran out of memory.
    """

    name: str
    completed: bool = True
    samples: tuple[JobSample, ...] = ()
    oom: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BrainRequest:
    """The input of an algorithm: a job, and what is known about it.

    Attributes:
        history: former jobs (upstream: of the last 7 days).
        phase: the phase of the job's workers.
        claims: of all jobs that share the cluster, this one included (by `WorkerClaim.job`).
        capacity: what the jobs with claims may share, by resource: cores, MiB, GPUs.
    """

    job: OptimizerJob
    history: tuple[FormerJob, ...] = ()
    training: TrainingParameters = field(default_factory=TrainingParameters)
    phase: WorkerPhase = WorkerPhase.STABLE
    claims: tuple[WorkerClaim, ...] = ()
    capacity: Mapping[str, float] = field(default_factory=dict)


BrainAlgorithm = Callable[[BrainRequest], Advice]


def former_samples(record: FormerJob) -> tuple[JobSample, ...]:
    """A former job's valid samples, oldest first."""
    return valid_samples(record.samples).samples


def one_worker_seconds(window: SampleWindow, training: TrainingParameters) -> float | None:
    """Seconds that one worker would need for all steps, at the mean speed of a worker; None if unknown."""
    speed = window.speed / window.trainers
    return training.steps / speed if training.steps is not None and speed > 0 else None


def major_cluster(values: Sequence[float]) -> list[float]:
    """The values closest to the median, without outliers on either side.

    The cluster grows from the median, always by the nearer neighbour, until it has more than half of the
    values (upstream's ComputeMajorCluster, which stops early when one side is used up; this one continues on
    the other side).
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    left = right = middle
    while right - left < middle and (left > 0 or right < len(ordered) - 1):
        kernel = ordered[(left + right + 1) // 2]
        below = kernel - ordered[left - 1] if left > 0 else math.inf
        above = ordered[right + 1] - kernel if right < len(ordered) - 1 else math.inf
        left, right = (left - 1, right) if below < above else (left, right + 1)
    return ordered[left : right + 1]


def major_mean(values: Sequence[float]) -> float:
    """The mean of the major cluster; 0 without values."""
    return mean(major_cluster(values)) if values else 0.0
