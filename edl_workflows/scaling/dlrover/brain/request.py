"""What Brain's algorithms are told, and what several of them ask of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edl_workflows.scaling.dlrover.brain.fairness import WorkerClaim
from edl_workflows.scaling.dlrover.ps_stages import WorkerPhase
from edl_workflows.scaling.dlrover.resources import OptimizerJob, ResourcePlan
from edl_workflows.scaling.dlrover.sample_window import LEAST, SampleWindow
from edl_workflows.scaling.dlrover.samples import JobSample, mean, valid_samples

RECORDS = LEAST
"""The newest samples that algorithms look at."""
SHORT_SECONDS = 1_800.0
"""A job that one worker would finish in so long is a short one."""


@dataclass(frozen=True)
class TrainingParameters:
    """What a job says of its training; 0 is not known.

    Attributes:
        batch_size: records in a step.
        dataset_size: records in an epoch.
        epochs: how often all records are read.
        max_steps: the most steps, whatever the records say.
        recv_ops: operations of the graph that receive from parameter servers.
    """

    batch_size: int = 0
    dataset_size: int = 0
    epochs: int = 0
    max_steps: int = 0
    recv_ops: int = 0

    @property
    def steps(self) -> float | None:
        """How many steps the job takes; None if that is not known."""
        by_records = self.dataset_size * max(self.epochs, 1) / self.batch_size if self.batch_size > 0 else 0.0
        known = [steps for steps in (by_records, float(self.max_steps)) if math.isfinite(steps) and steps > 0]
        return min(known, default=None)


@dataclass(frozen=True)
class FormerJob:
    """A former job of the same scenario.

    Attributes:
        completed: it ended with success.
        samples: what was measured of it, in any order.
        oom: names of its nodes that ran out of memory.
    """

    name: str
    completed: bool = True
    samples: tuple[JobSample, ...] = ()
    oom: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BrainRequest:
    """A job, and all that may matter for it.

    Attributes:
        history: former jobs (upstream: of the last 7 days).
        phase: how careful a plan for workers is.
        claims: what this job and those beside it want, for fairness; by `WorkerClaim.job` one of them is this job's.
        capacity: what all jobs with a claim may share, by resource: cores, MiB, pieces.
    """

    job: OptimizerJob
    history: tuple[FormerJob, ...] = ()
    training: TrainingParameters = field(default_factory=TrainingParameters)
    phase: WorkerPhase = WorkerPhase.STABLE
    claims: tuple[WorkerClaim, ...] = ()
    capacity: Mapping[str, float] = field(default_factory=dict)


BrainAlgorithm = Callable[[BrainRequest], ResourcePlan]


def former_samples(record: FormerJob) -> tuple[JobSample, ...]:
    """A former job's samples that can be believed, oldest first."""
    return valid_samples(record.samples).samples


def one_worker_seconds(window: SampleWindow, training: TrainingParameters) -> float | None:
    """How long one worker alone would need for all steps, at the mean speed of one; None if that is not known."""
    speed = window.speed / window.trainers
    return training.steps / speed if training.steps is not None and speed > 0 else None


def major_cluster(values: Sequence[float]) -> list[float]:
    """The half of the values, and one, that lie closest around the median: without outliers on either side.

    Grown from the median, each time by the nearer neighbour, until more than half of the values are in it (upstream's
    ComputeMajorCluster; it stops early when one side is used up, ours goes on with the other).
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
    """The mean of the major cluster; 0 of nothing."""
    return mean(major_cluster(values)) if values else 0.0
