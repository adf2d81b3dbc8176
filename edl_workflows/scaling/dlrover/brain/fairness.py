"""Fairness across jobs: what each may have of a cluster that has not enough for all (named in DLRover's design, absent
upstream).

Dominant-resource fairness by progressive filling (Ghodsi et al., NSDI 2011): a job's *dominant share* is the largest part
of any resource of the cluster that its workers hold. Every job has its minimum; then the job with the smallest share,
divided by its weight, gets one worker more, until none that wants more finds room. What each job holds now plays no part,
so that the answer does not depend on who came first and does not change when it is carried out.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edl_workflows.scaling.dlrover.resources import AMOUNTS, NodeSize

_SLACK = 1e-9
"""Sums of floats are off by less than this part of the capacity."""
_MAX_WORKERS = 10_000


@dataclass(frozen=True)
class WorkerClaim:
    """What one job wants.

    Attributes:
        job: its name, unique.
        worker: size of one worker.
        fixed: what its other nodes have together, which it keeps.
        least: workers that it can't do without.
        wanted: workers that it could use.
        weight: a job of weight 2 has twice the share of one of weight 1.
    """

    job: str
    worker: NodeSize
    least: int = 1
    wanted: int = 60
    weight: float = 1.0
    fixed: NodeSize = field(default_factory=NodeSize)


@dataclass(frozen=True)
class FairShares:
    """Workers by job, and why a job is not among them."""

    workers: Mapping[str, int]
    problems: Mapping[str, str]


def fair_shares(claims: Iterable[WorkerClaim], capacity: Mapping[str, float]) -> FairShares:
    """How many workers each job may have.

    Args:
        claims: in any order. A claim that makes no sense is left out, and said in `FairShares.problems`.
        capacity: what the jobs may share, by resource; finite and positive; one that is not named is not scarce.

    Returns:
        Between `least` and `wanted` for each job. All together have no more than the capacity, unless the minima do.
    """
    claims = list(claims)
    wrong = {claim.job: why for claim in claims if (why := _problem(claim))}
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
        (_share(claim, claim.least, scarce), claim.job, claim) for claim in good if claim.least < claim.wanted
    ]
    heapq.heapify(line)
    while line:
        _, job, claim = heapq.heappop(line)
        need = {name: claim.worker.amount(name) or 0.0 for name in scarce}
        if any(amount > free[name] + _SLACK * scarce[name] for name, amount in need.items() if amount):
            continue
        free = {name: left - need[name] for name, left in free.items()}
        workers[job] += 1
        if workers[job] < claim.wanted:
            heapq.heappush(line, (_share(claim, workers[job], scarce), job, claim))
    return FairShares(workers, wrong)


def _share(claim: WorkerClaim, workers: int, capacity: Mapping[str, float]) -> float:
    """The dominant share per weight; where nothing that the job uses is scarce, its count, so that all take turns."""
    parts = [workers * (claim.worker.amount(name) or 0.0) / limit for name, limit in capacity.items()]
    return max(parts, default=0.0) / claim.weight or workers / claim.weight / _MAX_WORKERS


def _problem(claim: WorkerClaim) -> str:
    if not 0 <= claim.least <= claim.wanted <= _MAX_WORKERS:
        return f"{claim.job} wants {claim.least} to {claim.wanted} workers"
    if not (math.isfinite(claim.weight) and claim.weight > 0):
        return f"the weight of {claim.job} is {claim.weight}"
    for size in (claim.worker, claim.fixed):
        for name in AMOUNTS:
            amount = size.amount(name)
            if amount is not None and not (math.isfinite(amount) and amount >= 0):
                return f"the {name} of {claim.job} is {amount}"
    return ""
