"""Which addresses the replicas of a TFJob have, and what ``TF_CONFIG`` tells each about the others."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.kubeflow.model import ReplicaType, list_replicas, replica_host
from edl_workflows.core.jobs.kubeflow.pods import KubeflowFramework
from edl_workflows.core.jobs.tf_job.model import TFJob, TFReplicaType
from edl_workflows.core.kubernetes import names


def replica_address(job: TFJob, kind: ReplicaType, index: int, domain: str = "") -> str:
    """Where a replica listens, as ``name.namespace.svc:port`` or ``name.namespace.svc.domain:port``."""
    return f"{replica_host(job, kind, index, domain)}:{TENSORFLOW.port_of(job, kind)}"


def tf_config(job: TFJob, kind: ReplicaType, index: int, domain: str = "") -> dict[str, Any] | None:
    """``TF_CONFIG`` of a replica; None for a job of a single replica, which trains alone.

    The evaluator gets the cluster's description, but is not part of it (TensorFlow's rule). With
    ``enableDynamicWorker`` a worker's TF_CONFIG names only itself and the parameter servers, and a parameter
    server's only itself, so that workers can come and go without changing anyone else's.

    Args:
        job: the replica's.
        kind: its type.
        index: its index.
        domain: the cluster's domain, needed if short service names do not resolve.
    """
    if len(list(list_replicas(job))) == 1:
        return None
    task = {"type": kind.slug, "index": index}
    members = _members(job, domain)
    if not job.spec.enable_dynamic_worker:
        return {"cluster": members, "task": task, "environment": "cloud"}
    key = "sparseCluster" if "sparse-cluster-key" in job.compat else "cluster"
    own = replica_address(job, kind, index, domain)
    return {key: _sparse_cluster(members, kind, index, own), "task": task, "environment": "cloud"}


def _variables(
    job: TFJob, kind: ReplicaType, index: int, settings: InstallationSettings
) -> Mapping[str, str]:
    config = tf_config(job, kind, index, settings.tf_cluster_domain)
    return {} if config is None else {names.ENV_TF_CONFIG: json.dumps(config)}


def _members(job: TFJob, domain: str = "") -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for kind, index in list_replicas(job):
        if kind is not TFReplicaType.EVALUATOR:
            members.setdefault(kind.slug, []).append(replica_address(job, kind, index, domain))
    return members


def _sparse_cluster(
    members: Mapping[str, list[str]], kind: ReplicaType, index: int, own: str
) -> dict[str, Any]:
    servers = members.get(TFReplicaType.PS.slug, [])
    if kind is TFReplicaType.PS:
        return {"worker": {}, "ps": [servers[index]]}
    alone = {"worker": {str(index): own}}
    rest = alone if kind is TFReplicaType.WORKER else {kind.slug: [own], "worker": {}}
    return {**rest, "ps": servers}


def _cluster_id(job: TFJob) -> str:
    """Hash of the cluster's members and of the parameter servers' template. With ``enableDynamicWorker`` it
    does not include the workers.
    """
    if "static-cluster" in job.compat:
        return "static"
    members = _members(job)
    if job.spec.enable_dynamic_worker:
        members.pop(TFReplicaType.WORKER.slug, None)
    servers = job.spec.replicas.get(TFReplicaType.PS)
    text = json.dumps([members, servers.template if servers else None], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


TENSORFLOW = KubeflowFramework(
    operator="tfjob-controller",
    container="tensorflow",
    port_name="tfjob-port",
    port=2222,
    variables=_variables,
    cluster_id=_cluster_id,
)
