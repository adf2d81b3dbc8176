"""Metrics of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from edl_workflows.simulator.cluster import SimulationRun


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of one run. Times are in seconds, and NaN if no job is complete.

    Attributes:
        jct_mean, jct_p50, jct_p99: job completion time, from submission to completion, of the complete jobs;
            the 99th percentile is the smallest value that 99 % of them don't exceed.
        makespan: from the first submission to the last completion, or to the end of the run if jobs are
            incomplete.
        utilisation: fraction of the GPU time of the makespan that jobs held.
        pending: mean time without a GPU.
        restarts: mean number of restarts, not counting the first start.
        jobs: number of jobs.
        unfinished: number of incomplete jobs.
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
    """Completion times of the complete jobs, in seconds, ascending."""
    return sorted(job.finished - job.submitted for job in run.jobs if job.finished is not None)


def percentile(ascending: Sequence[float], part: int) -> float:
    """The smallest value that `part` percent of the values don't exceed; NaN without values."""
    return ascending[math.ceil(part * len(ascending) / 100) - 1] if ascending else math.nan


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN without values."""
    return math.fsum(values) / len(values) if values else math.nan


def _end(run: SimulationRun) -> float:
    """The time of the last completion or, if a job is incomplete, of the last decision."""
    finished = [job.finished for job in run.jobs if job.finished is not None]
    if len(finished) < len(run.jobs) and run.samples:
        return run.samples[-1].time
    return max(finished, default=math.nan)


def _utilisation(run: SimulationRun, first: float, last: float) -> float:
    """GPU seconds that jobs held, relative to those available."""
    samples = [sample for sample in run.samples if sample.time < last]
    if not samples:
        return math.nan
    # A sample's capacity counts until the next sample. Until then jobs hold no more GPUs, so the result is at
    # most 1.
    times = [first, *(sample.time for sample in samples[1:]), last]
    available = math.fsum(
        sample.gpus * (end - start) for sample, (start, end) in zip(samples, pairwise(times), strict=True)
    )
    return math.fsum(job.attained_service for job in run.jobs) / available if available else math.nan
