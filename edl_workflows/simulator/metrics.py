"""What a run is judged by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edl_workflows.simulator.cluster import SimulationRun


@dataclass(frozen=True)
class RunMetrics:
    """Of one run. Times are in seconds; NaN where no job was complete.

    Attributes:
        jct_mean, jct_p50, jct_p99: job completion time, from submission to completion, of the jobs that were complete; the
            99th percentile is the smallest value that 99 % of them don't exceed.
        makespan: from the first submission to the last completion, or to the end of the run where jobs were not complete.
        utilisation: part of the GPU time of the makespan that jobs held.
        pending: mean time without a GPU.
        restarts: mean number, without the first start.
        jobs: how many.
        unfinished: jobs that were not complete at the end of the run.
    """

    jct_mean: float
    jct_p50: float
    jct_p99: float
    makespan: float
    utilisation: float
    pending: float
    restarts: float
    jobs: int
    unfinished: int


def measure_run(run: SimulationRun) -> RunMetrics:
    """The metrics of a run."""
    times = completion_times(run)
    first = min((job.submitted for job in run.jobs), default=math.nan)
    last = _end(run)
    return RunMetrics(
        jct_mean=mean(times),
        jct_p50=percentile(times, 50),
        jct_p99=percentile(times, 99),
        makespan=last - first,
        utilisation=_utilisation(run, first, last),
        pending=mean([job.pending for job in run.jobs]),
        restarts=mean([job.restarts for job in run.jobs]),
        jobs=len(run.jobs),
        unfinished=len(run.jobs) - len(times),
    )


def completion_times(run: SimulationRun) -> list[float]:
    """Of the jobs that were complete, in seconds, ascending."""
    return sorted(job.finished - job.submitted for job in run.jobs if job.finished is not None)


def percentile(ascending: Sequence[float], part: int) -> float:
    """The smallest value that so many percent don't exceed; NaN of none."""
    return ascending[math.ceil(part * len(ascending) / 100) - 1] if ascending else math.nan


def mean(values: Sequence[float]) -> float:
    """NaN of none."""
    return math.fsum(values) / len(values) if values else math.nan


def _end(run: SimulationRun) -> float:
    """The last completion; where a job was not complete, the last decision."""
    finished = [job.finished for job in run.jobs if job.finished is not None]
    if len(finished) < len(run.jobs) and run.samples:
        return run.samples[-1].time
    return max(finished, default=math.nan)


def _utilisation(run: SimulationRun, first: float, last: float) -> float:
    """GPU seconds held by those there were."""
    samples = [sample for sample in run.samples if sample.time < last]
    if not samples:
        return math.nan
    # While no job is there no sample is taken; as many GPUs as otherwise on average then stand idle.
    there = sum(sample.gpus for sample in samples) / len(samples) * (last - first)
    return math.fsum(job.attained_service for job in run.jobs) / there if there else math.nan
