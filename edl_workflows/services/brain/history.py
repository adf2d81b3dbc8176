"""Reads the input of the Brain's algorithms from the store: the job's own samples, former jobs of its
scenario, and its fair share."""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from edl_workflows.core.kubernetes import demand
from edl_workflows.core.protocol.brain import MAX_COUNT, OptimizeRequest
from edl_workflows.core.scaling.dlrover.bounds import count_range, job_problems
from edl_workflows.core.scaling.dlrover.brain.fairness import WorkerClaim, fair_shares
from edl_workflows.core.scaling.dlrover.brain.messages import job_of, training_of
from edl_workflows.core.scaling.dlrover.brain.request import BrainRequest
from edl_workflows.core.scaling.dlrover.resources import AMOUNTS, WORKER, NodeSize, OptimizerJob
from edl_workflows.services.brain.observations import ClusterObservation
from edl_workflows.services.brain.store.reader import StoreReader
from edl_workflows.services.brain.store.records import JobKey, StoredJob

HISTORY_SECONDS = 7 * 86_400.0
"""Largest age of former jobs that are used, as in DLRover."""
HISTORY_JOBS = 20
HISTORY_SAMPLES = 60
"""Samples per former job, as many as DLRover keeps."""
OWN_SAMPLES = 500
SILENT_SECONDS = 3_600.0
"""A job whose master has sent nothing for this long is considered finished."""
ACTIVE_SECONDS = 300.0
"""Jobs whose masters reported or asked for advice within this time get a share of the cluster."""
MONITOR_SECONDS = 120.0
"""Samples of the monitor that are older do not describe the current cluster."""
SHARE_SECONDS = 30.0
"""Shortest interval between computations of the shares of all jobs: for a thousand jobs, one takes 0.2 s.
"""
MAX_SHARING = 5_000
_MIB = 2.0**20
_ROUNDING = 1e-6
"""Tolerance for rounding errors: requests are sums of floats."""
_NOTHING = 1e-9
"""Stands for "nothing left" of a resource that other pods use up, in cores, MiB or items. 0 would mean that
the cluster does not have the resource.
"""


class AdviceInputs:
    """Reads the input of advice. Thread-safe.

    Args:
        store: the store to read.
    """

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._shared_at = float("-inf")
        self._shares: Mapping[JobKey, int] = {}

    def request(self, asked: OptimizeRequest, now: float) -> BrainRequest:
        """A job with everything that its advice may depend on.

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
        # The share already takes the claims of other jobs into account, so no resource is scarce within it.
        claims = () if share is None else (WorkerClaim(job.name, NodeSize(), least=share, most=share),)
        return BrainRequest(job, tuple(former), training_of(facts.training), claims=claims)

    def _share(self, key: JobKey, now: float) -> int | None:
        """The number of workers that the job may have beside the other jobs; None if unknown."""
        with self._lock:
            if not 0 <= now - self._shared_at < SHARE_SECONDS:
                running = self._store.running(now - ACTIVE_SECONDS, MAX_SHARING)
                cluster = self._store.cluster(now - MONITOR_SECONDS)
                self._shares = {} if cluster is None else worker_shares(running, cluster)
                self._shared_at = now
            return self._shares.get(key)


def worker_shares(running: Iterable[StoredJob], cluster: ClusterObservation) -> dict[JobKey, int]:
    """The number of workers that each job may have for a fair division of the cluster.

    The jobs of a namespace share one weight, so that a tenant with many jobs does not get more than one with
    few.

    Args:
        running: jobs whose masters report. A job that the monitor does not see claims nothing.
        cluster: the current state of the cluster, including all its pods.
    """
    claiming = {made.job: (job, made) for job in running if (made := claim_of(job))}
    free = shared_capacity((job for job, _ in claiming.values()), cluster)
    if not free:
        return {}
    jobs = Counter(job.key.namespace for job, _ in claiming.values())
    weighted = [replace(made, weight=1 / jobs[job.key.namespace]) for job, made in claiming.values()]
    shares = fair_shares(weighted, free).workers
    # Nothing is reserved for a job without pods, but every job may have at least one worker.
    return {claiming[name][0].key: max(workers, 1) for name, workers in shares.items()}


def claim_of(stored: StoredJob) -> WorkerClaim | None:
    """A job's claim; None if the monitor does not see the job, or if it has no workers or is inconsistent.

    The sizes and counts that its master reports come from a tenant and are not trusted. So no more is
    reserved for the job than its pods hold; more is only given as part of its fair share.
    """
    if stored.facts is None or stored.seen is None:
        return None
    key, job = stored.key, job_of(stored.facts)
    role = job.roles.get(WORKER)
    if role is None or job_problems(job):
        return None
    allowed = count_range(job, WORKER)
    least, most = int(allowed.low), int(min(allowed.high, _most_by_limits(job)))
    if not role.auto_scale:
        least = most = role.count
    held = _amounts(stored.seen.requests)
    other_nodes = _sum_other_roles(job)
    fixed = {name: min(other_nodes.amount(name) or 0.0, held[name]) for name in AMOUNTS}
    left = {name: held[name] - fixed[name] for name in AMOUNTS}
    least = min(least, role.count, _workers_in(left, role.resource))
    return WorkerClaim(
        f"{key.namespace}/{key.uid}", role.resource, least, max(least, most), fixed=NodeSize.of(fixed)
    )


def _workers_in(room: Mapping[str, float], worker: NodeSize) -> int:
    """How many workers of a size fit into an amount."""
    fitting = [room[name] / value for name in AMOUNTS if (value := worker.amount(name) or 0.0) > 0]
    return math.floor(min(fitting, default=MAX_COUNT) + _ROUNDING)


def shared_capacity(sharing: Iterable[StoredJob], cluster: ClusterObservation) -> dict[str, float]:
    """The resources that these jobs share: those of the nodes, minus the requests of other pods."""
    offered, taken = _amounts(cluster.allocatable), _amounts(cluster.requested)
    own = [_amounts(job.seen.requests) for job in sharing if job.seen is not None]
    return {
        name: max(amount - taken[name] + sum(each[name] for each in own), _NOTHING)
        for name, amount in offered.items()
        if amount > 0
    }


def _amounts(seen: demand.Amounts) -> dict[str, float]:
    """Convert amounts to cores, MiB and items."""
    gpus = sum(amount for name, amount in seen.items() if name.endswith("/gpu"))
    return {"cpu": seen.get("cpu", 0.0), "memory": seen.get("memory", 0.0) / _MIB, "gpu": gpus}


def _most_by_limits(job: OptimizerJob) -> float:
    """The number of workers that the job's own limits allow."""
    size, fixed = job.roles[WORKER].resource, _sum_other_roles(job)
    rooms = [
        (job.limits.of(name) - (fixed.amount(name) or 0.0)) // value
        for name in AMOUNTS
        if (value := size.amount(name) or 0.0) > 0
    ]
    return max(0.0, min(rooms, default=float("inf")))


def _sum_other_roles(job: OptimizerJob) -> NodeSize:
    """The total resources of a job's nodes that are not workers."""
    other_roles = [role for name, role in job.roles.items() if name != WORKER]
    return NodeSize.of(
        {
            name: sum(role.count * (role.resource.amount(name) or 0.0) for role in other_roles)
            for name in AMOUNTS
        }
    )
