"""The jobs of a run, as they are submitted, and workloads drawn from the trace of a cluster."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from edl_workflows.exceptions import InvalidError
from edl_workflows.simulator.application import Application

_TRIED_REPLICAS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
_TUNED_EFFICIENCY = (0.5, 0.8)
"""A user who tunes a job takes more GPUs while each is worth at least half of the first; and not so few that he waits."""
_LONGEST = 12 * 3600.0
_SHORTEST = 60.0


@dataclass(frozen=True)
class WorkloadJob:
    """A job as its user submits it.

    Attributes:
        name: unique in the workload.
        submitted: seconds after the begin of the run.
        application: what it trains.
        replicas: how many the user asks for. A scheduler that decides this itself ignores it.
        batch_size: of all replicas together. A scheduler that decides this itself ignores it.

    Raises:
        InvalidError: a number is missing, negative or not one.
    """

    name: str
    submitted: float
    application: str
    replicas: int
    batch_size: int

    def __post_init__(self) -> None:
        if not (isfinite(self.submitted) and self.submitted >= 0):
            raise InvalidError(f"job {self.name}: submitted at {self.submitted}; give seconds from 0 up")
        if self.replicas < 1 or self.batch_size < 1:
            raise InvalidError(
                f"job {self.name}: {self.replicas} replicas, batch {self.batch_size}; give at least one of each"
            )


@dataclass(frozen=True)
class TraceJob:
    """A job that ran in a real cluster.

    Attributes:
        second_of_day: when it was submitted, in seconds since midnight.
        duration: seconds that it ran.
        gpu_time: GPU seconds that it had.
    """

    second_of_day: float
    duration: float
    gpu_time: float


@dataclass(frozen=True)
class Category:
    """Jobs of about one size, and what stands for them.

    Attributes:
        below: they had less GPU time than this, in seconds.
        applications: names; each is as likely.
    """

    below: float
    applications: Sequence[str]


def tuned(application: Application, node_gpus: int = 4) -> list[tuple[int, int]]:
    """What a user who knows the application may ask for: (replicas, batch size), by the artifact's rule.

    With the best batch for so many replicas on as few nodes as possible, the job takes less than twelve hours and each
    replica is worth between 50 and 80 % of a single one. If nothing is so: one replica.

    Args:
        application: with its traces.
        node_gpus: GPUs of a node.
    """
    single, batch_size = _fastest(application, 1, node_gpus)
    found = []
    for replicas in _TRIED_REPLICAS[1:]:
        if replicas * application.min_local_bsz > application.max_batch_size:
            break
        seconds, batch = _fastest(application, replicas, node_gpus)
        low, high = _TUNED_EFFICIENCY
        if seconds < _LONGEST and low < single / seconds / replicas < high:
            found.append((replicas, batch))
    return found or [(1, batch_size)]


def draw(
    trace: Sequence[TraceJob],
    applications: Mapping[str, Application],
    categories: Sequence[Category],
    *,
    jobs: int,
    hours: tuple[float, float],
    seed: int,
) -> list[WorkloadJob]:
    """A workload of jobs like those of a trace, submitted at the times of day of the trace.

    Args:
        trace: jobs under a minute are left out, and those of no category.
        applications: by name.
        categories: by `below`, ascending.
        jobs: how many.
        hours: of the day in which they were submitted, from and to.
        seed: the same seed gives the same workload.

    Raises:
        InvalidError: the trace has fewer jobs in these hours.
    """
    begin, end = (hour * 3600 for hour in hours)
    fitting = [
        (job, category)
        for job in trace
        if job.duration >= _SHORTEST and begin <= job.second_of_day < end
        for category in [next((one for one in categories if job.gpu_time < one.below), None)]
        if category is not None
    ]
    if len(fitting) < jobs:
        raise InvalidError(
            f"the trace has {len(fitting)} jobs in these hours, less than {jobs}; ask for fewer"
        )
    chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
    drawn = sorted(chance.sample(fitting, jobs), key=lambda one: one[0].second_of_day)
    choices = {name: tuned(application) for name, application in applications.items()}
    workload = []
    for number, (job, category) in enumerate(drawn):
        application = chance.choice(category.applications)
        replicas, batch_size = chance.choice(choices[application])
        name = f"{application}-{number}"
        workload.append(WorkloadJob(name, job.second_of_day - begin, application, replicas, batch_size))
    return workload


def _fastest(application: Application, replicas: int, node_gpus: int) -> tuple[float, int]:
    """(seconds of the training, batch size) with the best of the measured batches."""
    full, rest = divmod(replicas, node_gpus)
    placement = (node_gpus,) * full + ((rest,) if rest else ())
    best = (inf, application.init_batch_size)
    for batch_size in application.batch_sizes:
        split = application.split(batch_size, replicas, measured=False)
        if -(-batch_size // replicas) >= application.min_local_bsz:
            step = application.step_time(placement, split.local_bsz).accumulated(split.accumulation)
            best = min(best, (application.iterations(batch_size, application.epochs - 1) * step, batch_size))
    return best
