"""Jobs whose workers average gradients by all-reduce: a batch that stays the same, and how many workers pay.

Batch (DLRover's design, "Fixed batch size"): with at most N workers, N mini-batches make a batch, however many workers
there are. Scale decision: upstream's asks for free GPUs in a function that always says 0; ours climbs by what was measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from edl_workflows.exceptions import InvalidError

MIN_GAIN = 0.5
"""The least that each added worker brings, as part of what each brought before: below it, half of it waits for others."""
LEAST = 3
"""Measurements of one count; fewer say too little."""
NEWEST = 5


def mini_batches(max_workers: int, workers: int) -> tuple[int, ...]:
    """How many mini-batches each worker computes before gradients are averaged: m_i = ⌊N/N0⌋ + (1 if i < N mod N0).

    Args:
        max_workers: N, which is also the number of mini-batches in a batch.
        workers: N0, those there are.

    Returns:
        By rank; together N.

    Raises:
        InvalidError: there is no worker, or there are more than N: some would have nothing to compute (upstream gives them 0
            and divides by it later).
    """
    if not 1 <= workers <= max_workers:
        raise InvalidError(f"{workers} workers can't share a batch of {max_workers}: 1 to {max_workers} can")
    each, rest = divmod(max_workers, workers)
    return tuple(each + (rank < rest) for rank in range(workers))


@dataclass(frozen=True)
class AllreduceJob:
    """What the decision is made from.

    Attributes:
        workers: how many there are; all run.
        min_workers, max_workers: the user's bounds.
        free: how many more workers the cluster has room for.
        speeds: count of workers → samples or steps of a fixed batch per second, measured at that count, oldest first.
        node_unit: counts are multiples of it (nodes of one switch or one machine).
        fixed_batch: the batch is `max_workers` mini-batches at every count.
    """

    workers: int
    min_workers: int
    max_workers: int
    free: int
    speeds: Mapping[int, Sequence[float]] = field(default_factory=dict)
    node_unit: int = 1
    fixed_batch: bool = False


@dataclass(frozen=True)
class Decision:
    """How many workers there shall be, and why."""

    workers: int
    reason: str


def decide(job: AllreduceJob, min_gain: float = MIN_GAIN) -> Decision:
    """How many workers the job shall have.

    The gain of growing from k to m workers is ((v_m - v_k) / (m - k)) / (v_k / k): 1 is perfect scaling. From the smallest
    measured count the *knee* is reached by steps to measured counts, each with a gain of at least `min_gain`.

    1. Impossible values: stay.  2. Outside the bounds: into them.
    3. Fewer than three measurements at the present count: stay, and measure.
    4. Beyond the knee: back to it.
    5. At the knee: to twice the count, or halfway to the next larger count that is known not to pay, where there is room.
       With a fixed batch, to the smallest count of as few mini-batches a worker: more workers would wait.

    A count that was measured is never tried again, so this comes to rest.
    """
    if wrong := _problem(job, min_gain):
        return Decision(job.workers, wrong)
    low, high = _bounds(job)
    if low > high:
        return Decision(job.workers, f"no multiple of {job.node_unit} lies within the bounds")
    nearest = min(max(_floor(job.workers, job.node_unit), low), high)
    most = min(high, _floor(job.workers + job.free, job.node_unit))
    if nearest > max(job.workers, most):
        return Decision(
            job.workers, f"{nearest} workers are the least, and the cluster has room for {job.free} more"
        )
    if nearest != job.workers:
        return Decision(nearest, f"{low} to {high} workers in multiples of {job.node_unit} are allowed")
    known = _medians(job.speeds)
    if job.workers not in known:
        return Decision(
            job.workers, f"speed with {job.workers} workers is not known yet: {LEAST} measurements are needed"
        )
    # A count that is not allowed is no place to go back to, however well it did.
    allowed = {n: speed for n, speed in known.items() if low <= n <= high and n % job.node_unit == 0}
    knee = _knee(allowed, min_gain)
    if knee < job.workers:
        gain = _gain(allowed, knee, job.workers)
        why = f"each worker beyond {knee} brings {gain:.0%} of what each brought before; {min_gain:.0%} is the least"
        return Decision(knee, why)
    return _grow(job, knee, min((count for count in allowed if count > knee), default=None), most)


def _grow(job: AllreduceJob, knee: int, failed: int | None, most: int) -> Decision:
    """From the present count, which pays: to the knee if that is more, else to a count that was not tried."""
    workers, unit = job.workers, job.node_unit
    if knee > workers:
        target = min(knee, most)
    else:
        target = min(2 * workers if failed is None else _floor((workers + failed) // 2, unit), most)
    if job.fixed_batch and target > workers:
        fewest = math.ceil(job.max_workers / math.ceil(job.max_workers / target))
        target = min(target, -(-fewest // unit) * unit)
    if target > workers:
        return Decision(target, f"{workers} workers scale well; {target} may too")
    if failed is not None and most >= failed:
        return Decision(workers, f"{workers} workers pay, {failed} don't")
    return Decision(workers, "more workers are not allowed, find no room, or would not shorten a step")


def _problem(job: AllreduceJob, min_gain: float) -> str:
    """Why nothing can be decided; "" if something can."""
    if job.workers < 1:
        return "no worker runs yet"
    if job.free < 0:
        return f"the cluster says that it has room for {job.free} workers"
    if not 1 <= job.min_workers <= job.max_workers or job.node_unit < 1:
        return f"the bounds are impossible: {job.min_workers} to {job.max_workers} in multiples of {job.node_unit}"
    return "" if 0 <= min_gain <= 1 else f"the least gain is {min_gain}: 0 to 1 is possible"


def _bounds(job: AllreduceJob) -> tuple[int, int]:
    """The least and the largest allowed multiple of the unit."""
    return -(-job.min_workers // job.node_unit) * job.node_unit, _floor(job.max_workers, job.node_unit)


def _medians(speeds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Count → median of the newest speeds, of those counts that have enough that can be."""
    good = {
        count: [speed for speed in values if math.isfinite(speed) and speed > 0]
        for count, values in sorted(speeds.items())
        if count >= 1
    }
    return {count: median(values[-NEWEST:]) for count, values in good.items() if len(values) >= LEAST}


def _knee(known: Mapping[int, float], min_gain: float) -> int:
    counts = sorted(known)
    for count, larger in pairwise(counts):
        if _gain(known, count, larger) < min_gain:
            return count
    return counts[-1]


def _gain(known: Mapping[int, float], count: int, larger: int) -> float:
    return (known[larger] - known[count]) / (larger - count) / (known[count] / count)


def _floor(value: int, unit: int) -> int:
    return value // unit * unit
