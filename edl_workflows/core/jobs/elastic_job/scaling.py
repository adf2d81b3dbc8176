"""Who decides the size of an ElasticJob, and what the cluster's autoscaler may change. Pure."""

import math
from collections.abc import Mapping

from edl_workflows.core.jobs.autoscaling import ElasticRole
from edl_workflows.core.jobs.elastic_job.model import DistributionStrategy, ElasticJob, OptimizeMode
from edl_workflows.core.kubernetes import demand, names
from edl_workflows.core.kubernetes.objects import Resource, parse_quantity

_MOST = 10_000
"""The most replicas of a role that the schema allows."""
_SLACK = 1e-6
"""Sums of floats are off by less than this."""


def scaled_by_master(job: Resource) -> bool:
    """Whether the job's own master plans its size, alone or with Brain, and reports the plan in
    ``status.autoscaling``."""
    return isinstance(job, ElasticJob) and job.spec.optimize_mode is not OptimizeMode.MANUAL


def elastic_role(job: ElasticJob) -> ElasticRole | None:
    """The job's workers in mode manual, within ``resourceLimits`` and a collective job's rendezvous. The spec
    names no other bounds, so the annotation must.

    None if the master plans the size, if the role has ``autoScale: false``, or if the job is Local, that is,
    one process.
    """
    worker = job.spec.replica_specs.get("worker")
    alone = job.spec.distribution_strategy is DistributionStrategy.LOCAL
    if worker is None or alone or not worker.auto_scale or scaled_by_master(job):
        return None
    pod = worker.template.get("spec") or {}
    requests = demand.pod_requests(pod)
    placement = {
        "nodeSelector": pod.get("nodeSelector") or {},
        "tolerations": pod.get("tolerations") or [],
        "affinity": pod.get("affinity") or {},
    }
    least, most = 1, _most(job, requests)
    if job.spec.distribution_strategy is DistributionStrategy.ALLREDUCE:
        least = job.spec.rendezvous.min_nodes
        most = min(most, job.spec.rendezvous.max_nodes or worker.replicas)
    return ElasticRole(
        names.WORKER_TYPE,
        least,
        most,
        count_desired_nodes(job)[names.WORKER_TYPE],
        requests,
        placement,
        bounded=False,
    )


def count_desired_nodes(job: ElasticJob) -> dict[str, int]:
    """How many nodes of each training role the job wants now; the spec has only the initial numbers."""
    statuses = job.status.replica_statuses
    specs = job.spec.replica_specs.items()
    return {
        role: statuses[role].desired if role in statuses else spec.replicas
        for role, spec in specs
        if role != names.MASTER_TYPE
    }


def _most(job: ElasticJob, requests: Mapping[str, float]) -> int:
    """How many workers fit into the job's limits besides its other nodes."""
    reserved: dict[str, float] = {}
    for role, count in count_desired_nodes(job).items():
        if role != names.WORKER_TYPE:
            template = job.spec.replica_specs[role].template  # type: ignore[index]  # a literal
            per_node = demand.pod_requests(template.get("spec") or {})
            demand.add_amounts(reserved, {name: amount * count for name, amount in per_node.items()})
    resource_limits = job.spec.resource_limits
    limits = {
        "cpu": resource_limits.cpu,
        "memory": resource_limits.memory,
        "nvidia.com/gpu": resource_limits.gpu,
    }
    rooms = [
        (parse_quantity(limit) - reserved.get(name, 0.0)) / requests[name]
        for name, limit in limits.items()
        if requests.get(name)
    ]
    return max(0, min([_MOST, *(math.floor(room + _SLACK) for room in rooms)]))
