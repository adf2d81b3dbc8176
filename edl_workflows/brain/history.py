"""The input of Brain's algorithms, read from the store: the job's own samples, former jobs of its scenario,
its fair share."""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from edl_workflows.brain.observations import Amounts, ClusterObservation
from edl_workflows.brain.store.reader import StoreReader
from edl_workflows.brain.store.records import JobKey, StoredJob
from edl_workflows.protocol.brain import MAX_COUNT, OptimizeRequest
from edl_workflows.scaling.dlrover.bounds import count_range, job_problems
from edl_workflows.scaling.dlrover.brain.fairness import WorkerClaim, fair_shares
from edl_workflows.scaling.dlrover.brain.messages import job_of, training_of
from edl_workflows.scaling.dlrover.brain.request import BrainRequest
from edl_workflows.scaling.dlrover.resources import AMOUNTS, WORKER, NodeSize, OptimizerJob

HISTORY_SECONDS = 7 * 86_400.0
"""Age up to which former jobs are used, as upstream does."""
HISTORY_JOBS = 20
HISTORY_SAMPLES = 60
"""Per former job, as many as upstream keeps."""
OWN_SAMPLES = 500
SILENT_SECONDS = 3_600.0
"""A job whose master has sent nothing for so long is considered finished."""
ACTIVE_SECONDS = 300.0
"""Jobs whose masters reported or asked within so long take part in sharing the cluster."""
MONITOR_SECONDS = 120.0
"""Older samples of the monitor say nothing about the current cluster."""
SHARE_SECONDS = 30.0
"""The shares of all jobs are computed together, at most this often: a thousand jobs take a fifth of a second.
"""
MAX_SHARING = 5_000
_MIB = 2.0**20
_ROUNDING = 1e-6
"""Requests are sums of floats: three workers hold what three times one worker is."""
_NOTHING = 1e-9
"""Cores, MiB or pieces: what is left of a cluster that others fill. 0 would mean that the cluster has none.
"""


class PlanInputs:
    """Reads the input of plans. Thread-safe.

    Args:
        store: the store to read.
    """

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._shared_at = float("-inf")
        self._shares: Mapping[JobKey, int] = {}

    def request(self, asked: OptimizeRequest, now: float) -> BrainRequest:
        """A job with everything that may matter for its plan.

        Raises:
            UnavailableError: the store does not answer.
        """
        facts = asked.job
        key = JobKey(facts.namespace, facts.uid)
        job = job_of(facts, asked.nodes, self._store.samples(key, OWN_SAMPLES))
        former = self._store.former(
            facts, now - HISTORY_SECONDS, now - SILENT_SECONDS, HISTORY_JOBS, HISTORY_SAMPLES
        )
        share = self._share(key, now)
        # The others' claims are in the share already: within it nothing is scarce.
        claims = () if share is None else (WorkerClaim(job.name, NodeSize(), least=share, wanted=share),)
        return BrainRequest(job, tuple(former), training_of(facts.training), claims=claims)

    def _share(self, key: JobKey, now: float) -> int | None:
        """The number of workers that the job may have besides the other jobs; None if unknown."""
        with self._lock:
            if not 0 <= now - self._shared_at < SHARE_SECONDS:
                running = self._store.running(now - ACTIVE_SECONDS, MAX_SHARING)
                cluster = self._store.cluster(now - MONITOR_SECONDS)
                self._shares = {} if cluster is None else worker_shares(running, cluster)
                self._shared_at = now
            return self._shares.get(key)


def worker_shares(running: Iterable[StoredJob], cluster: ClusterObservation) -> dict[JobKey, int]:
    """The number of workers that each job may have for a fair division of the cluster.

    Jobs of one namespace divide one weight: a tenant with many jobs does not get more than one with few.

    Args:
        running: jobs whose masters report; one that the monitor does not see claims nothing.
        cluster: its current state, with all its pods.
    """
    claiming = {made.job: (job, made) for job in running if (made := claim_of(job))}
    free = shared_capacity((job for job, _ in claiming.values()), cluster)
    if not free:
        return {}
    jobs = Counter(job.key.namespace for job, _ in claiming.values())
    weighted = [replace(made, weight=1 / jobs[job.key.namespace]) for job, made in claiming.values()]
    found = fair_shares(weighted, free).workers
    # Nothing is reserved for a job without pods, but none is told to have no worker.
    return {claiming[name][0].key: max(workers, 1) for name, workers in found.items()}


def claim_of(stored: StoredJob) -> WorkerClaim | None:
    """A job's claim; None if the monitor does not see the job, or if it has no workers or is inconsistent.

    The sizes and counts that its master reports are a tenant's word. So no more is reserved for the job than
    its pods hold; anything beyond that it gets only as part of its fair share.
    """
    if stored.facts is None or stored.seen is None:
        return None
    key, job = stored.key, job_of(stored.facts)
    role = job.roles.get(WORKER)
    if role is None or job_problems(job):
        return None
    allowed = count_range(job, WORKER)
    least, wanted = int(allowed.low), int(min(allowed.high, _most_by_limits(job)))
    if not role.auto_scale:
        least = wanted = role.count
    held = _amounts(stored.seen.requests)
    beside = _beside_workers(job)
    fixed = {name: min(beside.amount(name) or 0.0, held[name]) for name in AMOUNTS}
    left = {name: held[name] - fixed[name] for name in AMOUNTS}
    least = min(least, role.count, _workers_in(left, role.resource))
    return WorkerClaim(
        f"{key.namespace}/{key.uid}", role.resource, least, max(least, wanted), fixed=NodeSize.of(fixed)
    )


def _workers_in(room: Mapping[str, float], worker: NodeSize) -> int:
    """How many workers of a size fit into an amount."""
    fitting = [room[name] / value for name in AMOUNTS if (value := worker.amount(name) or 0.0) > 0]
    return math.floor(min(fitting, default=MAX_COUNT) + _ROUNDING)


def shared_capacity(sharing: Iterable[StoredJob], cluster: ClusterObservation) -> dict[str, float]:
    """What these jobs may share: what the nodes offer, minus what other pods request."""
    offered, taken = _amounts(cluster.allocatable), _amounts(cluster.requested)
    own = [_amounts(job.seen.requests) for job in sharing if job.seen is not None]
    return {
        name: max(amount - taken[name] + sum(each[name] for each in own), _NOTHING)
        for name, amount in offered.items()
        if amount > 0
    }


def _amounts(seen: Amounts) -> dict[str, float]:
    """In cores, MiB and pieces."""
    gpus = sum(amount for name, amount in seen.items() if name.endswith("/gpu"))
    return {"cpu": seen.get("cpu", 0.0), "memory": seen.get("memory", 0.0) / _MIB, "gpu": gpus}


def _most_by_limits(job: OptimizerJob) -> float:
    """The number of workers that the job's own limits allow."""
    size, fixed = job.roles[WORKER].resource, _beside_workers(job)
    rooms = [
        (job.limits.of(name) - (fixed.amount(name) or 0.0)) // value
        for name in AMOUNTS
        if (value := size.amount(name) or 0.0) > 0
    ]
    return max(0.0, min(rooms, default=float("inf")))


def _beside_workers(job: OptimizerJob) -> NodeSize:
    """What a job's other nodes have together."""
    others = [role for name, role in job.roles.items() if name != WORKER]
    return NodeSize.of(
        {name: sum(role.count * (role.resource.amount(name) or 0.0) for role in others) for name in AMOUNTS}
    )
