"""Fair shares of a cluster that is too small for all jobs; named in DLRover's design, absent from its code.

Dominant-resource fairness by progressive filling (Ghodsi et al., NSDI 2011): a job's *dominant share* is the
largest fraction of any resource of the cluster that its workers hold. Every job gets its minimum. Then the
job with the smallest dominant share, divided by its weight, gets one more worker, until no job that wants
more finds room. Present allocations don't count, so that the result does not depend on the order of arrival
and does not change when it is carried out.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edl_workflows.core.scaling.dlrover.resources import AMOUNTS, NodeSize

_SLACK = 1e-9
"""Rounding errors of sums are smaller than this fraction of the capacity."""
_MAX_WORKERS = 10_000


@dataclass(frozen=True)
class WorkerClaim:
    """The workers that one job wants.

    Attributes:
        job: its name, unique.
        worker: size of one worker.
        fixed: the resources of its other nodes together, which it keeps.
        least: the fewest workers.
        most: the most workers that it could use.
        weight: a job of weight 2 gets twice the share of a job of weight 1.
    """

    job: str
    worker: NodeSize
    least: int = 1
    most: int = 60
    weight: float = 1.0
    fixed: NodeSize = field(default_factory=NodeSize)


@dataclass(frozen=True)
class FairShares:
    """The number of workers of each job; for invalid claims, the problem."""

    workers: Mapping[str, int]
    problems: Mapping[str, str]


def fair_shares(claims: Iterable[WorkerClaim], capacity: Mapping[str, float]) -> FairShares:
    """How many workers each job may have.

    Args:
        claims: in any order. An invalid claim is ignored and named in `FairShares.problems`.
        capacity: amounts that the jobs share, by resource; finite and positive. A missing resource is not
            scarce.

    Returns:
        Between `least` and `most` workers for each job. Together they fit the capacity, unless the minima
        exceed it.
    """
    claims = list(claims)
    wrong = {claim.job: problem for claim in claims if (problem := _problem(claim))}
    names = Counter(claim.job for claim in claims)
    wrong |= {job: f"{job} has {count} claims" for job, count in names.items() if count > 1}
    good = sorted((c for c in claims if c.job not in wrong), key=lambda c: c.job)
    scarce = {name: capacity[name] for name in AMOUNTS if capacity.get(name, 0.0) > 0}
    workers = {claim.job: claim.least for claim in good}
    free = {
        name: limit
        - math.fsum((c.fixed.amount(name) or 0) + c.least * (c.worker.amount(name) or 0) for c in good)
        for name, limit in scarce.items()
    }
    line = [
        (_share(claim, claim.least, scarce), claim.job, claim) for claim in good if claim.least < claim.most
    ]
    heapq.heapify(line)
    while line:
        _, job, claim = heapq.heappop(line)
        need = {name: claim.worker.amount(name) or 0.0 for name in scarce}
        if any(amount > free[name] + _SLACK * scarce[name] for name, amount in need.items() if amount):
            continue
        free = {name: left - need[name] for name, left in free.items()}
        workers[job] += 1
        if workers[job] < claim.most:
            heapq.heappush(line, (_share(claim, workers[job], scarce), job, claim))
    return FairShares(workers, wrong)


def _share(claim: WorkerClaim, workers: int, capacity: Mapping[str, float]) -> float:
    """The dominant share by weight; by the number of workers for a job that uses no scarce resource."""
    parts = [workers * (claim.worker.amount(name) or 0.0) / limit for name, limit in capacity.items()]
    return max(parts, default=0.0) / claim.weight or workers / claim.weight / _MAX_WORKERS


def _problem(claim: WorkerClaim) -> str:
    if not 0 <= claim.least <= claim.most <= _MAX_WORKERS:
        return f"{claim.job} wants {claim.least} to {claim.most} workers"
    if not (math.isfinite(claim.weight) and claim.weight > 0):
        return f"the weight of {claim.job} is {claim.weight}"
    for size in (claim.worker, claim.fixed):
        for name in AMOUNTS:
            amount = size.amount(name)
            if amount is not None and not (math.isfinite(amount) and amount >= 0):
                return f"the {name} of {claim.job} is {amount}"
    return ""
