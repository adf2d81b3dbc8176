"""Manifests of a TFJob's pods, their services, and the PodGroup of a gang."""

import copy
import json
from typing import Any

from edl_workflows.jobs import api, manifests, names
from edl_workflows.jobs.actions import InstallationSettings, Manifest, merge_patch
from edl_workflows.jobs.tf_job.cluster import cluster_id, port_of, replica_name, replicas, tf_config
from edl_workflows.jobs.tf_job.model import TFJob
from edl_workflows.jobs.tf_job.types import PORT_NAME, ReplicaType, RestartPolicy, container_of

_PREFIX = "training.kubeflow.org"
OPERATOR_LABEL = f"{_PREFIX}/operator-name"
OPERATOR = "tfjob-controller"
JOB_LABEL = f"{_PREFIX}/job-name"
TYPE_LABEL = f"{_PREFIX}/replica-type"
INDEX_LABEL = f"{_PREFIX}/replica-index"
ROLE_LABEL = f"{_PREFIX}/job-role"
"""``master`` on the replica whose log tells how the job goes: the chief's, else worker 0's."""
CLUSTER_LABEL = f"{names.GROUP}/cluster"
"""`cluster.cluster_id` of the cluster that the pod was told of."""

VOLCANO = "volcano"
_GANG_FIELDS = ("minMember", "queue", "minResources", "priorityClassName")


def labels(job: TFJob, kind: ReplicaType) -> dict[str, str]:
    """What all pods of a type carry."""
    return {OPERATOR_LABEL: OPERATOR, JOB_LABEL: job.metadata.name, TYPE_LABEL: kind.slug}


def selector(job: TFJob, kind: ReplicaType) -> str:
    """Selects the pods of a type."""
    return ",".join(f"{key}={value}" for key, value in labels(job, kind).items() if key != OPERATOR_LABEL)


def pod(job: TFJob, kind: ReplicaType, index: int, settings: InstallationSettings) -> dict[str, Any]:
    """A replica's pod: the user's template, with its place in the cluster put over it."""
    spec = job.spec.replicas[kind]
    template = copy.deepcopy(spec.template)
    metadata = template.get("metadata") or {}
    made = manifests.owned_manifest(
        "v1", "Pod", replica_name(job, kind, index), job, _pod_labels(job, kind, index)
    )
    made["metadata"]["labels"] = manifests.template_labels(metadata) | made["metadata"]["labels"]
    made["metadata"]["annotations"] = (metadata.get("annotations") or {}) | _gang_annotations(job, kind)
    # The node restarts containers for Always and OnFailure; for ExitCode the exit code must reach us.
    by_node = spec.policy if spec.policy is not RestartPolicy.EXIT_CODE else RestartPolicy.NEVER
    made["spec"] = template["spec"] | {"restartPolicy": str(by_node)}
    if job.spec.policies.scheduling_policy is not None:
        made["spec"].setdefault("schedulerName", VOLCANO)
    container = container_of(made)
    ports = list(container.get("ports") or ())
    if all(port.get("name") != PORT_NAME for port in ports):
        container["ports"] = [*ports, {"name": PORT_NAME, "containerPort": port_of(job, kind)}]
    config = tf_config(job, kind, index, settings.tf_cluster_domain)
    if config is not None:
        own = [variable for variable in container.get("env") or () if variable["name"] != "TF_CONFIG"]
        container["env"] = [{"name": "TF_CONFIG", "value": json.dumps(config)}, *own]
    return made


def service(job: TFJob, kind: ReplicaType, index: int) -> dict[str, Any]:
    """The headless service that gives a replica its address, before it is Ready too: replicas wait for each
    other.
    """
    own = labels(job, kind) | {INDEX_LABEL: str(index)}
    made = manifests.owned_manifest("v1", "Service", replica_name(job, kind, index), job, own)
    port = port_of(job, kind)
    made["spec"] = {
        "clusterIP": "None",
        "selector": own,
        "ports": [{"name": PORT_NAME, "port": port, "targetPort": port, "protocol": "TCP"}],
        "publishNotReadyAddresses": True,
    }
    return made


def pod_group(job: TFJob) -> dict[str, Any] | None:
    """Volcano's PodGroup of a job with a scheduling policy."""
    policy = job.spec.policies.scheduling_policy
    if policy is None:
        return None
    group = api.POD_GROUPS
    made = manifests.owned_manifest(
        group.api_version, group.kind, job.metadata.name, job, {JOB_LABEL: job.metadata.name}
    )
    wanted = {
        "minMember": policy.min_available or len(list(replicas(job))),
        "queue": policy.queue,
        "minResources": policy.min_resources,
        "priorityClassName": policy.priority_class,
    }
    made["spec"] = {key: value for key, value in wanted.items() if value}
    return made


def gang_change(there: Manifest, wanted: Manifest) -> dict[str, Any] | None:
    """The merge patch that gives a PodGroup the wanted spec; None if it has it. What others have put there
    stays.
    """
    now, then = there.get("spec") or {}, wanted["spec"]
    # Volcano writes its own queue where none is named.
    queue = then.get("queue") or ("default" if now.get("queue") else None)
    return merge_patch(now, {key: then.get(key) for key in _GANG_FIELDS} | {"queue": queue})


def _pod_labels(job: TFJob, kind: ReplicaType, index: int) -> dict[str, str]:
    own = labels(job, kind) | {INDEX_LABEL: str(index), CLUSTER_LABEL: cluster_id(job)}
    first = ReplicaType.WORKER if not any(k.decides for k in job.spec.replicas) else None
    return own | ({ROLE_LABEL: "master"} if kind.decides or (kind is first and index == 0) else {})


def _gang_annotations(job: TFJob, kind: ReplicaType) -> dict[str, str]:
    if job.spec.policies.scheduling_policy is None:
        return {}
    return {"scheduling.k8s.io/group-name": job.metadata.name, "volcano.sh/task-spec": kind.slug}
