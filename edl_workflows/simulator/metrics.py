"""What a run is judged by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edl_workflows.simulator.cluster import Run


@dataclass(frozen=True)
class Metrics:
    """Of one run. Times are in seconds; NaN where no job was complete.

    Attributes:
        jct_mean, jct_p99: job completion time, from submission to completion; the 99th percentile is the smallest value
            that 99 % of the jobs don't exceed.
        makespan: from the first submission to the last completion.
        utilisation: part of the GPU time of the makespan that jobs held.
        pending: mean time without a GPU.
        restarts: mean number, without the first start.
        unfinished: jobs that were not complete at the end of the run.
    """

    jct_mean: float
    jct_p99: float
    makespan: float
    utilisation: float
    pending: float
    restarts: float
    unfinished: int


def measure(run: Run) -> Metrics:
    """The metrics of a run."""
    done = [(job.submitted, job.finished) for job in run.jobs if job.finished is not None]
    times = sorted(finished - submitted for submitted, finished in done)
    first = min((job.submitted for job in run.jobs), default=math.nan)
    last = max((finished for _, finished in done), default=math.nan)
    return Metrics(
        jct_mean=_mean(times),
        jct_p99=times[math.ceil(0.99 * len(times)) - 1] if times else math.nan,
        makespan=last - first,
        utilisation=_utilisation(run, first, last),
        pending=_mean([job.pending for job in run.jobs]),
        restarts=_mean([job.restarts for job in run.jobs]),
        unfinished=len(run.jobs) - len(done),
    )


def _utilisation(run: Run, first: float, last: float) -> float:
    """GPU seconds held by those there were."""
    samples = [sample for sample in run.samples if sample.time < last]
    if not samples:
        return math.nan
    # While no job is there no sample is taken; as many GPUs as otherwise on average then stand idle.
    there = sum(sample.gpus for sample in samples) / len(samples) * (last - first)
    return sum(job.attained_service for job in run.jobs) / there


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
