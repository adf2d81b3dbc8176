"""The jobs as the fulfilment planner sees them, what each has in a plan, and the reasons in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edl_workflows.scaling.paddle.nodes import InstanceShape, invalid_amount
from edl_workflows.scaling.policy import Resources

_TURNS = 100_000
"""About so many are put in order at once: jobs may have far more to come than there is room for."""
_MOST = 10**15
"""Maxima above count as this."""


@dataclass(frozen=True)
class FulfilmentJob:
    """A job's elastic role. Pods of others that wait for a node are jobs of one instance that aren't elastic.

    Attributes:
        requests: what one instance asks for, by resource name in base units: cores, bytes, devices.
        min_instances, max_instances: bounds of their number.
        parallelism: how many it is told to have now.
        places: the nodes of those that have one, the oldest instance first. The others wait for a node.
        excluded: nodes that its pods can't run on.
    """

    requests: Resources
    min_instances: int
    max_instances: int
    parallelism: int
    places: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def elastic(self) -> bool:
        """Whether its number may be changed at all.

        The design document says "when min equals max", which is the opposite of what it means.
        """
        return self.min_instances < self.max_instances

    @property
    def gpus(self) -> float:
        """Devices of one instance; above 0 makes it a GPU job."""
        return sum([amount for name, amount in self.requests.items() if name.endswith("gpu")])

    def fulfilment(self, instances: int) -> float:
        """The score with so many instances: 0 at the minimum, 1 at the maximum, 1 for a job that isn't elastic."""
        span = self.max_instances - self.min_instances
        return (instances - self.min_instances) / span if span > 0 else 1.0


@dataclass(eq=False, slots=True)
class PlannedShare:
    """What a job has in the plan.

    Attributes:
        rank: its place in the order of the tie-breakers.
        most: how many it may have at most; 0 for a job that never gets more.
        instances: how many it has, the waiting ones among them.
        kept: nodes of those that the plan doesn't touch: the oldest, up to the minimum, and those on nodes that don't count.
        beyond: the others' nodes, by index, the oldest first.
        waiting: how many of its minimum wait for a node.
        fault: why its numbers can't be used; empty if they can.
        made_room: whether it gave one up on a node for a job that waited.
        why: why it gave up, if it did.
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
    why: str = ""
    short: str = ""

    @property
    def last(self) -> tuple[float, int]:
        """Sorts the most fulfilled before the others."""
        return -self.job.fulfilment(self.instances), -self.rank


def as_inelastic(job: FulfilmentJob) -> FulfilmentJob:
    """A job whose numbers can't be used, as what it holds: that of its requests which can be."""
    requests = {name: amount for name, amount in job.requests.items() if not invalid_amount({name: amount})}
    return FulfilmentJob(requests, 0, 0, len(job.places), job.places)


def tie_breaker(job: FulfilmentJob) -> tuple[float, float, float]:
    """GPUs, cores and memory of an instance: between equally fulfilled jobs the smaller comes first."""
    return job.gpus, job.requests.get("cpu", 0.0), job.requests.get("memory", 0.0)


def shortage_reason(share: PlannedShare) -> str:
    """Why a job has less than it may have; empty if it has all."""
    if share.waiting:
        return (
            f"{share.waiting} of its minimum wait: the nodes have no room for them,"
            " not even with every elastic job at its minimum"
        )
    if share.made_room:
        return "it gives up room for a job that waits, and doesn't grow in the same plan"
    return share.short


def change_reason(share: PlannedShare) -> str:
    """Why a job's number changes."""
    job, before, after = share.job, share.job.parallelism, share.instances
    if before < job.min_instances:
        return f"it had less than its minimum of {job.min_instances}"
    if after > before:
        scores = f"{job.fulfilment(before):.2f} to {job.fulfilment(after):.2f}"
        return f"there is room for {after - before} more: its fulfilment goes from {scores}"
    if before > job.max_instances:
        return f"it had more than its maximum of {job.max_instances}"
    return share.why or f"{before - after} of it wait for a node, and there is no room"


def growth_order(shares: Sequence[PlannedShare]) -> Iterator[PlannedShare]:
    """Jobs in the order in which they get one more: always the least fulfilled, by its number then, until all are full.

    Whose turn it is depends on the numbers alone, so that many turns are put in order at once. It relies on each turn's
    being used, or on `PlannedShare.short`: a job that gets no more.

    Args:
        shares: of elastic jobs that have at least their minimum and less than their maximum, by rank.
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
        yield from (shares[one] for one in whose[order].tolist())
