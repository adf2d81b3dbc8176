"""The jobs as the fulfilment algorithm sees them, what it gives to each, and a sentence that says why.

A job's fulfilment is 0 with its minimum of instances and 1 with its maximum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edl_workflows.core.scaling.paddle.nodes import InstanceShape, invalid_amount
from edl_workflows.core.scaling.policy import Resources

_TURNS = 100_000
"""How many turns are sorted at once, roughly: jobs may ask for far more than there is room for."""
_MOST = 10**15
"""Larger maxima count as this."""


@dataclass(frozen=True)
class FulfilmentJob:
    """A job's elastic role. A pending pod of anything else is a job of one instance that is not elastic.

    Attributes:
        requests: requests of one instance, by resource name in base units: cores, bytes, devices.
        min_instances, max_instances: bounds of the number of instances.
        parallelism: the desired number of instances now.
        places: the nodes of the scheduled instances, oldest first. The other instances are pending.
        excluded: nodes that the job's pods can't run on.
    """

    requests: Resources
    min_instances: int
    max_instances: int
    parallelism: int
    places: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def elastic(self) -> bool:
        """Whether the number of instances may change."""
        return self.min_instances < self.max_instances

    @property
    def gpus(self) -> float:
        """GPUs of one instance; a job with any is a GPU job."""
        return sum([amount for name, amount in self.requests.items() if name.endswith("gpu")])

    def fulfilment(self, instances: int) -> float:
        """The score with this number of instances: 0 at the minimum, 1 at the maximum and for inelastic
        jobs."""
        span = self.max_instances - self.min_instances
        return (instances - self.min_instances) / span if span > 0 else 1.0


@dataclass(eq=False, slots=True)
class JobShare:
    """What the algorithm gives to a job.

    Attributes:
        rank: the job's position in the order of the tie-breakers.
        most: the most instances that it may have; 0 for a job that never gets more.
        instances: decided instances, pending ones included.
        kept: nodes of the instances that do not move: the oldest, up to the minimum, and those on
            nodes that do not count.
        beyond: nodes of the other instances, by index, oldest first.
        waiting: pending instances of the minimum.
        fault: why the job's numbers are invalid; empty if they are valid.
        made_room: whether the job gave up an instance on a node for a pending job.
        reason: why it gave up instances, if it did.
        short: why it gets no more.
    """

    key: str
    job: FulfilmentJob
    shape: InstanceShape
    cpu_only: bool
    rank: int
    most: int
    instances: int
    kept: list[str]
    beyond: list[int]
    waiting: int
    fault: str
    made_room: bool = False
    reason: str = ""
    short: str = ""

    @property
    def last(self) -> tuple[float, int]:
        """Sort key that puts the jobs with the highest fulfilment first."""
        return -self.job.fulfilment(self.instances), -self.rank


def as_inelastic(job: FulfilmentJob) -> FulfilmentJob:
    """A job with invalid numbers, as an inelastic job that keeps what it holds. Only its valid requests
    count."""
    requests = {name: amount for name, amount in job.requests.items() if not invalid_amount({name: amount})}
    return FulfilmentJob(requests, 0, 0, len(job.places), job.places)


def tie_breaker(job: FulfilmentJob) -> tuple[float, float, float]:
    """GPUs, cores and memory of an instance: of equally fulfilled jobs, the smaller one comes first."""
    return job.gpus, job.requests.get("cpu", 0.0), job.requests.get("memory", 0.0)


def shortage_reason(share: JobShare) -> str:
    """Why a job has less than its maximum; empty if it has all."""
    if share.waiting:
        return (
            f"{share.waiting} of its minimum wait: the nodes have no room for them,"
            " not even with every elastic job at its minimum"
        )
    if share.made_room:
        return "it gives up room for a job that waits, and doesn't grow in the same plan"
    return share.short


def change_reason(share: JobShare) -> str:
    """Why a job's number changes."""
    job, before, after = share.job, share.job.parallelism, share.instances
    if before < job.min_instances:
        return f"it had less than its minimum of {job.min_instances}"
    if after > before:
        scores = f"{job.fulfilment(before):.2f} to {job.fulfilment(after):.2f}"
        return f"there is room for {after - before} more: its fulfilment goes from {scores}"
    if before > job.max_instances:
        return f"it had more than its maximum of {job.max_instances}"
    return share.reason or f"{before - after} of it wait for a node, and there is no room"


def growth_order(shares: Sequence[JobShare]) -> Iterator[JobShare]:
    """Yield the job that gets the next instance, always the least fulfilled one, until all are full.

    The order depends only on the numbers, so many turns are sorted at once. This relies on the caller either
    adding the instance or setting `JobShare.short`.

    Args:
        shares: of elastic jobs with at least their minimum and less than their maximum, in the order of
            ranks.
    """
    while shares := [share for share in shares if not share.short and share.instances < share.most]:
        least = np.array([share.job.min_instances for share in shares], np.float64)
        span = np.array([min(share.most, _MOST) for share in shares], np.float64) - least
        extra = np.array([share.instances for share in shares], np.float64) - least
        lowest = (extra / span).min()
        level = max(lowest + _TURNS / span.sum(), np.nextafter(lowest, np.inf))
        upto = np.minimum(np.ceil(level * span) + 1, span)
        counts = np.maximum(upto - extra, 0).astype(np.intp)
        whose = np.repeat(np.arange(len(shares)), counts)
        numbers = np.arange(len(whose)) - np.repeat(counts.cumsum() - counts, counts) + extra[whose]
        scores = numbers / span[whose]
        order = np.flatnonzero(scores < level)
        order = order[np.argsort(scores[order], kind="stable")]
        yield from (shares[index] for index in whose[order].tolist())
