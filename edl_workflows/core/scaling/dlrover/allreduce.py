"""Chooses the number of workers of an all-reduce job by the speeds measured with different numbers.

If the maximum is N workers, the global batch has N mini-batches however many workers there are (DLRover's
design, "Fixed batch size"), so speeds at different counts can be compared. DLRover decides by free GPUs, with
a function that always returns 0; here the number of workers climbs as long as each added worker brings enough
speed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from edl_workflows.core.scaling.dlrover.bounds import bound_advice, count_range
from edl_workflows.core.scaling.dlrover.resources import (
    WORKER,
    Advice,
    OptimizerJob,
    empty_advice,
    role_advice,
)
from edl_workflows.core.scaling.dlrover.samples import MAX_SPEED

MIN_GAIN = 0.5
"""The least speed that each added worker must contribute, as a fraction of the speed per worker before."""
LEAST = 3
"""The fewest measurements at one count that a decision is based on."""
NEWEST = 5


@dataclass(frozen=True)
class AllreduceJob:
    """The input of a decision.

    Attributes:
        workers: present number of workers; all run.
        min_workers, max_workers: the user's bounds.
        free: how many more workers the cluster has room for.
        speeds: number of workers → samples or steps of a fixed batch per second, measured at that number,
            oldest first.
        node_unit: the number of workers is a multiple of it (nodes of one switch or one machine).
        fixed_batch: whether the batch is `max_workers` mini-batches at every number of workers.
    """

    workers: int
    min_workers: int
    max_workers: int
    free: int
    speeds: Mapping[int, Sequence[float]] = field(default_factory=dict)
    node_unit: int = 1
    fixed_batch: bool = False


@dataclass(frozen=True)
class WorkerDecision:
    """The desired number of workers, and why."""

    workers: int
    reason: str


def decide_workers(job: AllreduceJob, min_gain: float = MIN_GAIN) -> WorkerDecision:
    """Decide how many workers the job gets.

    The gain of growing from k to m workers is ((v_m - v_k) / (m - k)) / (v_k / k); 1 is perfect scaling. The
    *knee* is the largest measured count that is reached from the smallest one in steps with a gain of at
    least `min_gain` each.

    1. Impossible values: keep the count.
    2. Outside the bounds: move into them.
    3. Fewer than three measurements at the present count: keep it, and measure.
    4. Beyond the knee: go back to it.
    5. At the knee: double the count, or go halfway to the next larger count that is known not to pay off, as
       far as there is room. With a fixed batch, use the smallest count that gives each worker no more
       mini-batches than this count does: further workers would idle.

    A measured count is never tried again, so the decisions settle.
    """
    if wrong := _problem(job, min_gain):
        return WorkerDecision(job.workers, wrong)
    low, high = _bounds(job)
    if low > high:
        return WorkerDecision(job.workers, f"no multiple of {job.node_unit} lies within the bounds")
    nearest = min(max(_floor(job.workers, job.node_unit), low), high)
    most = min(high, _floor(job.workers + job.free, job.node_unit))
    if nearest > max(job.workers, most):
        return WorkerDecision(
            job.workers, f"{nearest} workers are the least, and the cluster has room for {job.free} more"
        )
    if nearest != job.workers:
        return WorkerDecision(nearest, f"{low} to {high} workers in multiples of {job.node_unit} are allowed")
    speeds = _medians(job.speeds)
    if job.workers not in speeds:
        return WorkerDecision(
            job.workers, f"speed with {job.workers} workers is not known yet: {LEAST} measurements are needed"
        )
    # Counts that are not allowed are ignored, however fast the job was with them.
    allowed = {n: speed for n, speed in speeds.items() if low <= n <= high and n % job.node_unit == 0}
    knee = _knee(allowed, min_gain)
    if knee < job.workers:
        gain = _gain(allowed, knee, job.workers)
        brings = f"each worker beyond {knee} brings {gain:.0%} of what each brought before"
        reason = f"{brings}; {min_gain:.0%} is the least"
        return WorkerDecision(knee, reason)
    return _grow(job, knee, min((count for count in allowed if count > knee), default=None), most)


def _grow(job: AllreduceJob, knee: int, failed: int | None, most: int) -> WorkerDecision:
    """Grow from a count that pays off: to the knee if that is larger, else to an untried count."""
    workers, unit = job.workers, job.node_unit
    if knee > workers:
        target = min(knee, most)
    else:
        target = min(2 * workers if failed is None else _floor((workers + failed) // 2, unit), most)
    if job.fixed_batch and target > workers:
        fewest = math.ceil(job.max_workers / math.ceil(job.max_workers / target))
        target = min(target, -(-fewest // unit) * unit)
    if target > workers:
        return WorkerDecision(target, f"{workers} workers scale well; {target} may too")
    if failed is not None and most >= failed:
        return WorkerDecision(workers, f"{workers} workers pay, {failed} don't")
    return WorkerDecision(workers, "more workers are not allowed, find no room, or would not shorten a step")


def _problem(job: AllreduceJob, min_gain: float) -> str:
    """Why no decision is possible; "" if one is."""
    if job.workers < 1:
        return "no worker runs yet"
    if job.free < 0:
        return f"the cluster says that it has room for {job.free} workers"
    if not 1 <= job.min_workers <= job.max_workers or job.node_unit < 1:
        bounds = f"{job.min_workers} to {job.max_workers} in multiples of {job.node_unit}"
        return f"the bounds are impossible: {bounds}"
    return "" if 0 <= min_gain <= 1 else f"the least gain is {min_gain}: 0 to 1 is possible"


def _bounds(job: AllreduceJob) -> tuple[int, int]:
    """The smallest and the largest allowed multiple of the unit."""
    return -(-job.min_workers // job.node_unit) * job.node_unit, _floor(job.max_workers, job.node_unit)


def _medians(speeds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Count → median of its newest speeds, for the counts with enough valid measurements."""
    good = {
        count: [speed for speed in values if math.isfinite(speed) and speed > 0]
        for count, values in sorted(speeds.items())
        if count >= 1
    }
    return {count: median(values[-NEWEST:]) for count, values in good.items() if len(values) >= LEAST}


def _knee(speeds: Mapping[int, float], min_gain: float) -> int:
    counts = sorted(speeds)
    for count, larger in pairwise(counts):
        if _gain(speeds, count, larger) < min_gain:
            return count
    return counts[-1]


def _gain(speeds: Mapping[int, float], count: int, larger: int) -> float:
    return (speeds[larger] - speeds[count]) / (larger - count) / (speeds[count] / count)


def _floor(value: int, unit: int) -> int:
    return value // unit * unit


@dataclass(frozen=True)
class WorldSize:
    """The world sizes that the job's rendezvous allows, and the speeds measured with them.

    Attributes:
        least, most: the fewest and the most workers.
        unit: the number of workers is a multiple of it.
        speeds: number of workers → steps per second, oldest first.
    """

    least: int
    most: int
    unit: int = 1
    speeds: Mapping[int, Sequence[float]] = field(default_factory=dict)


def advise_worker_count(job: OptimizerJob, size: WorldSize) -> Advice:
    """Advise the number of workers of a collective job by `decide_workers`.

    There is no advice until all wanted workers run. The room that `resourceLimits` leave counts as free in
    the cluster. Whether a new node can be scheduled shows only when it is created, and advice whose nodes
    stay pending is withdrawn.
    """
    role = job.roles.get(WORKER)
    if role is None or not role.auto_scale:
        return empty_advice("workers: autoScale is off")
    running = sum(node.pending_since is None for node in job.of(WORKER))
    if running != role.count:
        return empty_advice(f"{running} of {role.count} workers run", waiting=True)
    allowed = count_range(job, WORKER)
    possible = {
        count: [speed for speed in measured if math.isfinite(speed) and 0 < speed <= MAX_SPEED]
        for count, measured in size.speeds.items()
    }
    decision = decide_workers(
        AllreduceJob(
            workers=role.count,
            min_workers=max(size.least, int(allowed.low)),
            max_workers=min(size.most, int(allowed.high)),
            free=_room(job, size.most),
            speeds=possible,
            node_unit=size.unit,
            fixed_batch=True,
        )
    )
    if decision.workers == role.count:
        return empty_advice(decision.reason)
    return bound_advice(job, role_advice(WORKER, decision.reason, decision.workers), tolerance=0.0)


def _room(job: OptimizerJob, most: int) -> int:
    """How many more workers the job's limits allow."""
    fitting = bound_advice(job, role_advice(WORKER, "", most), tolerance=0.0).node_group_resources.get(WORKER)
    count = job.roles[WORKER].count
    return max(0, (count if fitting is None or fitting.count is None else fitting.count) - count)
