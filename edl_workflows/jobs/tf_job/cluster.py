"""Which replicas a TFJob has, their addresses, and what each is told of the others in ``TF_CONFIG``."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.jobs.tf_job.model import TFJob
from edl_workflows.jobs.tf_job.types import PORT, PORT_NAME, ReplicaType, container_of

STOPPED_FIRST = (ReplicaType.CHIEF, ReplicaType.MASTER, ReplicaType.WORKER, ReplicaType.EVALUATOR)
"""Types that end before parameter servers do: a chief that saves a checkpoint when it is told to end needs
the servers.
"""


def replica_name(job: TFJob, kind: ReplicaType, index: int) -> str:
    """Name of a replica's pod and of its service, as upstream's: ``<job>-<type>-<index>``."""
    return f"{job.metadata.name}-{kind.slug}-{index}"


def replicas(job: TFJob) -> Iterator[tuple[ReplicaType, int]]:
    """All replicas that the job is to have."""
    for kind, spec in job.spec.replicas.items():
        for index in range(spec.replicas):
            yield kind, index


def port_of(job: TFJob, kind: ReplicaType) -> int:
    """The port of a type's replicas: the one named ``tfjob-port``, else 2222."""
    ports = container_of(job.spec.replicas[kind].template).get("ports") or ()
    return next((int(p["containerPort"]) for p in ports if p.get("name") == PORT_NAME), PORT)


def address(job: TFJob, kind: ReplicaType, index: int, domain: str = "") -> str:
    """Where a replica listens, as ``name.namespace.svc:port``, or ``name.namespace.svc.domain:port``."""
    host = ".".join(
        filter(None, (replica_name(job, kind, index), job.metadata.namespace or "default", "svc", domain))
    )
    return f"{host}:{port_of(job, kind)}"


def tf_config(job: TFJob, kind: ReplicaType, index: int, domain: str = "") -> dict[str, Any] | None:
    """``TF_CONFIG`` of a replica; None for a job of a single replica, which trains alone.

    The evaluator is told of the cluster, but is no part of it (TensorFlow's rule). With
    ``enableDynamicWorker`` a worker is
    told of itself and of the parameter servers, and a server of itself: so workers come and go unknown to the
        others.

    Args:
        job: the replica's.
        kind: its type.
        index: its index.
        domain: of the cluster, where short names of services do not resolve.
    """
    if len(list(replicas(job))) == 1:
        return None
    task = {"type": kind.slug, "index": index}
    members = _members(job, domain)
    if not job.spec.enable_dynamic_worker:
        return {"cluster": members, "task": task, "environment": "cloud"}
    key = "sparseCluster" if "sparse-cluster-key" in job.compat else "cluster"
    own = address(job, kind, index, domain)
    return {key: _sparse(members, kind, index, own), "task": task, "environment": "cloud"}


def _members(job: TFJob, domain: str = "") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, index in replicas(job):
        if kind is not ReplicaType.EVALUATOR:
            found.setdefault(kind.slug, []).append(address(job, kind, index, domain))
    return found


def _sparse(members: Mapping[str, list[str]], kind: ReplicaType, index: int, own: str) -> dict[str, Any]:
    servers = members.get(ReplicaType.PS.slug, [])
    if kind is ReplicaType.PS:
        return {"worker": {}, "ps": [servers[index]]}
    alone = {"worker": {str(index): own}}
    rest = alone if kind is ReplicaType.WORKER else {kind.slug: [own], "worker": {}}
    return {**rest, "ps": servers}


def cluster_id(job: TFJob) -> str:
    """Hash of what all replicas must agree on: the cluster, and what its parameter servers are.

    Pods of another hash belong to an earlier cluster. Workers that come and go freely are no part of it.
    """
    if "static-cluster" in job.compat:
        return "static"
    members = _members(job)
    if job.spec.enable_dynamic_worker:
        members.pop(ReplicaType.WORKER.slug, None)
    servers = job.spec.replicas.get(ReplicaType.PS)
    text = json.dumps([members, servers.template if servers else None], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
