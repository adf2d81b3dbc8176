"""What each allocation is worth to each job, and the price of a share of the cluster.

Pollux maximizes the power mean of the jobs' speed-ups (OSDI'21, §4.2)::

    FITNESS = (1/J · Σ_j w_j · u_j^p)^(1/p)
    u_j     = goodput of what j gets / goodput of a fair share, times, where j is re-allocated,
    REALLOC = max(T − R·δ, 0) / (T + δ)     for T seconds of age, R restarts so far, δ seconds that one takes

The mean is a sum over jobs, so each allocation has a *worth* of its own, `w_j · φ(u_j)`, with φ(u) = u^p / p,
or log u for p = 0. A job that starts pays no REALLOC: it interrupts nothing, and has to start once anyway.

Speed-ups weigh all jobs equally, however long they are. With `PolluxOptions.shortest_first`, shorter jobs
weigh more. One of J jobs that has l_j seconds left weighs::

    w_j = (1/J · Σ_i min(1, l_i / l_j)^4)^1.25

The sum is roughly the job's rank by the work left, longest first; a job with half as much left adds a
sixteenth. Unlike a rank it is continuous: jobs with nearly the same work left weigh nearly the same, and no
job moves for a second more or less. About that many jobs wait for the end of this one, and each gains a
second if it ends a second sooner. (heSRPT, the optimum for jobs that are all present and whose speed grows as
k^p, weighs by rank too: Berg, Vesilo and Harchol-Balter, 2020.) Both exponents were found by simulation, see
docs/explanation/performance.md; similar ones do nearly as well.

The work left is what the job declares. If it declares nothing, the time left is assumed to equal the job's
age, a good guess if few jobs are very long. No job starves: the older a waiting job is, the more its waiting
counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from edl_workflows.core.scaling.policy import NodeInfo, Resources
from edl_workflows.core.scaling.pollux.model import PolluxJob, PolluxOptions
from edl_workflows.core.scaling.portable_math import Floats, ordered_sum, portable_log, portable_power

LEAST_SPEEDUP = 1e-3
"""The speed-up of a job that waits, so that its worth is finite, as in the paper's artifact."""
PRIORITY_FACTOR = 10.0
"""The factor by which waiting counts more with each step of a job's priority."""
MOST_PRIORITY = 5
"""Higher priorities make no difference, so that sums keep their precision."""
PATIENCE = 24 * 3600.0
"""Seconds. With `shortest_first`, older jobs come before all younger waiting ones, however long they are."""
MOST_PATIENCE = 30.0
"""The largest multiple of `PATIENCE` that makes a difference, for the same reason."""
LEAST_LEFT = 1.0
MOST_LEFT = 1e12
"""Seconds; the range in which the work left of jobs is compared."""
_STEEPNESS = 4
_RANK_POWER = 1.25
"""The exponents of a job's weight with `shortest_first`."""
_SLACK = 1e-6
"""Sums of floats such as 0.1 are off by less than this part of them."""
_LEAST_SPEED = 1e-200
"""A lower speed counts as 0, since quotients of it would not be finite."""
_PRICES = (1e-9, 1e15)
_BISECTIONS = 20
"""Each halves the logarithm of the interval; the resulting price is exact to 0.01 %."""


@dataclass(frozen=True)
class JobShape:
    """A job as the search sees it: nodes are numbers, demands are arrays.

    Attributes:
        job: the job itself.
        least, most: elastic replicas that it may have beside the fixed ones, unless it waits.
        demand: the request of an elastic replica, by resource.
        fixed: the request of each fixed replica.
        caps: by node, how many elastic replicas it may have: `most`, or fewer on nodes that accept no new
            ones.
        open: the nodes that accept new replicas of it.
        share: the largest fraction of any resource of the cluster that a replica requests.
    """

    job: PolluxJob
    least: int
    most: int
    demand: Floats
    fixed: tuple[Floats, ...]
    caps: NDArray[np.int64]
    open: NDArray[np.bool_]
    share: float
    requested_resources: NDArray[np.intp] = field(repr=False)
    """The resources that an elastic replica requests."""

    def slots(self, free: Floats) -> NDArray[np.int64]:
        """How many elastic replicas fit on each node."""
        if not len(self.requested_resources):
            return self.caps
        amounts = free[:, self.requested_resources] / self.demand[self.requested_resources]
        fitting: NDArray[np.int64] = amounts.min(axis=1).clip(0.0, self.caps).astype(np.int64)
        return fitting


def job_shape(
    job: PolluxJob, nodes: Sequence[NodeInfo], total: Mapping[str, float], held: Mapping[int, int]
) -> JobShape:
    """Make the shape of a job.

    Args:
        job: the job.
        nodes: in the order of their numbers.
        total: free amounts of all nodes together, by resource, in the order of the arrays.
        held: node → elastic replicas that the job has there.
    """
    info = job.info
    fixed = len(info.fixed)
    least = max(info.min_replicas - fixed, 0 if fixed else 1)
    most = max(min(info.max_replicas, max(job.speedup.max_replicas, info.min_replicas)) - fixed, 0)
    if info.max_replicas < info.min_replicas or not all(map(_sound, (info.resources, *info.fixed))):
        least, most = 1, 0  # contradictory bounds or invalid requests: nothing is allowed
    demand = resource_vector(info.resources, total)
    for amount, available in zip(demand.tolist(), total.values(), strict=True):
        if amount > 0:  # more replicas than the whole cluster holds
            most = min(most, int(available / amount * (1 + _SLACK)))
    shares = [
        min(amount / available, 1.0) if available > 0 else 1.0
        for amount, available in zip(demand.tolist(), total.values(), strict=True)
        if amount
    ]
    free_to = np.array([node.schedulable and node.key not in info.excluded for node in nodes], dtype=bool)
    caps = np.full(len(nodes), most, dtype=np.int64)
    for number in np.flatnonzero(~free_to).tolist():
        caps[number] = min(held.get(number, 0), most)
    return JobShape(
        job=job,
        least=least,
        most=most,
        demand=demand,
        fixed=tuple(resource_vector(requests, total) for requests in info.fixed),
        caps=caps,
        open=free_to,
        share=max(shares, default=0.0),
        requested_resources=np.flatnonzero(demand),
    )


@dataclass(frozen=True)
class AllocationValues:
    """The worth of each job's options; the first axis is jobs, the second elastic replicas.

    Attributes:
        local: worth of a new allocation on one node; -inf if it is not allowed.
        spread: worth of a new allocation on several nodes.
        kept: worth of the present allocation; -inf if there is none or it is not allowed.
        nothing: worth of waiting.
        share: fraction of the cluster that the replicas use.
        kept_share: fraction of the cluster that the present allocation uses.
    """

    local: Floats
    spread: Floats
    kept: Floats
    nothing: Floats
    share: Floats
    kept_share: Floats

    def price(self, capacity: float) -> float:
        """The lowest price of a share of the cluster at which the jobs together want no more than `capacity`.

        It is the multiplier of the relaxed problem, in which only the sum of all shares is limited: each job
        takes the option with the highest worth less price.

        Args:
            capacity: the shares that the jobs may have together.
        """
        worth, share = self._options()
        job_numbers = np.arange(len(worth))

        def demand(price: float) -> float:
            return fsum(share[job_numbers, np.argmax(worth - price * share, axis=1)].tolist())

        if not len(worth) or demand(0.0) <= capacity * (1 + _SLACK):
            return 0.0
        low, high = _PRICES
        for _ in range(_BISECTIONS):
            middle = sqrt(low * high)
            low, high = (middle, high) if demand(middle) > capacity * (1 + _SLACK) else (low, middle)
        return high

    def bound(self, price: float, capacity: float) -> float:
        """An upper bound of the worth of all solutions of the relaxed problem, for any price (Lagrange)."""
        worth, share = self._options()
        return fsum((worth - price * share).max(axis=1).tolist()) + price * capacity

    def _options(self) -> tuple[Floats, Floats]:
        """Worth and share of each job's options: nothing, its present allocation, each number of replicas."""
        sized = np.maximum(self.local, self.spread)
        worth = np.concatenate([self.nothing[:, None], self.kept[:, None], sized], axis=1)
        none = np.zeros((len(worth), 1))
        return worth, np.concatenate([none, self.kept_share[:, None], self.share], axis=1)

    def wants(self, price: float) -> "PricedDemand":
        """What each job wants at this price, by the room that there is."""
        cost = price * self.share
        local, local_score = _running_best(self.local - cost)
        spread, spread_score = _running_best(self.spread - cost)
        kept = self.kept - price * self.kept_share
        return PricedDemand(
            local.tolist(),
            local_score.tolist(),
            spread.tolist(),
            spread_score.tolist(),
            kept.tolist(),
            self.nothing.tolist(),
        )


@dataclass(frozen=True)
class PricedDemand:
    """What each job wants at a price, as plain lists, since values are read one by one.

    Attributes:
        local: job → number of replicas for which one node has room → elastic replicas to take.
        local_score: their worth less their price; -inf if no number is allowed.
        spread, spread_score: the same for room on several nodes.
        kept: job → worth of its present allocation, less its price.
        nothing: job → worth of waiting.
    """

    local: list[list[int]]
    local_score: list[list[float]]
    spread: list[list[int]]
    spread_score: list[list[float]]
    kept: list[float]
    nothing: list[float]


def allocation_values(
    shapes: Sequence[JobShape],
    held: Sequence[Mapping[int, int]],
    fair: Sequence[tuple[int, bool]],
    options: PolluxOptions,
) -> AllocationValues:
    """The worth of all options of all jobs.

    Args:
        shapes: the jobs.
        held: for each job, node → elastic replicas; empty if it has none or may not keep them.
        fair: for each job its fair share: the number of replicas, and whether they are on several nodes.
        options: weights.
    """
    width = max((shape.most for shape in shapes), default=0) + 1
    count = len(shapes)
    values = AllocationValues(
        local=np.full((count, width), -inf),
        spread=np.full((count, width), -inf),
        kept=np.full(count, -inf),
        nothing=np.zeros(count),
        share=np.zeros((count, width)),
        kept_share=np.zeros(count),
    )
    weights = _weights([shape.job for shape in shapes], fair, options)
    for number, (shape, weight) in enumerate(zip(shapes, weights, strict=True)):
        _fill(values, number, shape, held[number], _fair_speed(shape.job, *fair[number]), weight, options)
    return values


def _fill(
    values: AllocationValues,
    number: int,
    shape: JobShape,
    held: Mapping[int, int],
    base: float,
    weight: float,
    options: PolluxOptions,
) -> None:
    """Fill in the values of one job; `base` is its speed with a fair share."""
    job = shape.job
    fixed = len(shape.fixed)
    tables = [_speeds(table, fixed, shape.most) for table in (job.speedup.local, job.speedup.spread)]
    factor = _restart_factor(job, options.restart_seconds) if held else 1.0
    allowed = slice(shape.least, shape.most + 1)
    for worth, speeds in zip((values.local, values.spread), tables, strict=True):
        worth[number, allowed] = _worth(speeds[allowed] / base * factor, weight, options.fairness)
    slow = float(_worth(np.array([1.0]), weight, options.fairness)[0])
    # A placed job is worth more than a waiting one, whatever its table says: its speed-up is at least
    # LEAST_SPEEDUP.
    urgency = PRIORITY_FACTOR ** max(min(job.info.priority, MOST_PRIORITY), 0)
    if options.shortest_first:
        urgency *= max(1.0, min(_age(job) / PATIENCE, MOST_PATIENCE) * job.weight / weight)
    values.nothing[number] = slow - (slow - _lowest(weight, options.fairness)) * urgency
    values.share[number] = (np.arange(values.share.shape[1]) + fixed) * shape.share
    total = sum(held.values())
    if held and shape.least <= total <= shape.most:
        speed = tables[len(held) > 1][total] / base
        values.kept[number] = float(_worth(np.array([speed]), weight, options.fairness)[0])
        values.kept_share[number] = values.share[number, total]


def _weights(
    jobs: Sequence[PolluxJob], fair: Sequence[tuple[int, bool]], options: PolluxOptions
) -> list[float]:
    """The weight of each job's speed; see the module."""
    if not options.shortest_first:
        return [job.weight for job in jobs]
    left = [
        _age(job) if job.remaining is None else job.remaining / _fair_speed(job, *share)
        for job, share in zip(jobs, fair, strict=True)
    ]
    seconds = np.array(left, dtype=float).clip(LEAST_LEFT, MOST_LEFT)
    longer = portable_power(np.minimum(seconds / seconds[:, None], 1.0), _STEEPNESS)
    ranks = portable_power(ordered_sum(longer, 1) / max(len(jobs), 1), _RANK_POWER)
    return [job.weight * rank for job, rank in zip(jobs, ranks.tolist(), strict=True)]


def _speeds(table: Sequence[float], fixed: int, most: int) -> Floats:
    """Speeds by elastic replicas; beyond the table's end its last value is used."""
    return np.array([table[min(fixed + count, len(table) - 1)] for count in range(most + 1)])


def _fair_speed(job: PolluxJob, replicas: int, spread: bool) -> float:
    """The speed with a fair share, but at least a small fraction of the best speed."""
    table = job.speedup.spread if spread else job.speedup.local
    best = max(*job.speedup.local, *job.speedup.spread)
    return (
        max(table[min(max(replicas, 1), len(table) - 1)], LEAST_SPEEDUP * best)
        if best > _LEAST_SPEED
        else 1.0
    )


def _restart_factor(job: PolluxJob, seconds: float) -> float:
    age = _age(job)
    if seconds == 0:
        return 1.0
    return max(age - job.restarts * seconds, 0.0) / (age + seconds)


def _age(job: PolluxJob) -> float:
    return job.info.age if isfinite(job.info.age) and job.info.age > 0 else 0.0


def _worth(speedup: Floats, weight: float, fairness: float) -> Floats:
    """The worth of speed-ups of a placed job."""
    return weight * _phi(np.maximum(speedup, LEAST_SPEEDUP) + LEAST_SPEEDUP, fairness)


def _lowest(weight: float, fairness: float) -> float:
    """The worth of waiting, so low that no job waits while others have plenty."""
    return weight * min(float(_phi(np.array([LEAST_SPEEDUP]), fairness)[0]), -1 / LEAST_SPEEDUP)


def _phi(speedup: Floats, fairness: float) -> Floats:
    return portable_log(speedup) if fairness == 0 else portable_power(speedup, fairness) / fairness


def _running_best(scores: Floats) -> tuple[NDArray[np.int64], Floats]:
    """For each amount of room, the number of replicas with the best score, and the score."""
    best = np.maximum.accumulate(scores, axis=1)
    fresh = np.concatenate([np.ones((len(best), 1), dtype=bool), best[:, 1:] > best[:, :-1]], axis=1)
    return np.maximum.accumulate(np.where(fresh, np.arange(scores.shape[1]), 0), axis=1), best


def resource_vector(amounts: Resources, names: Iterable[str]) -> Floats:
    """Amounts in the order of the names; those that are not finite count as 0."""
    vector = np.array([amounts.get(name, 0.0) for name in names], dtype=float)
    return np.where(np.isfinite(vector), vector, 0.0)


def _sound(demand: Resources) -> bool:
    return all(isfinite(amount) and amount >= 0 for amount in demand.values())
