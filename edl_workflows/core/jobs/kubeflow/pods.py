"""Manifests of a Kubeflow job's pods, their services, and the PodGroup of a gang; and the differences between
the kinds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import InstallationSettings, Manifest, merge_patch
from edl_workflows.core.jobs.kubeflow.model import (
    KubeflowJob,
    ReplicaType,
    RestartPolicy,
    container_of,
    list_replicas,
    replica_name,
)
from edl_workflows.core.kubernetes import api, names
from edl_workflows.core.kubernetes.pod_state import mark_own_container

_PREFIX = "training.kubeflow.org"
OPERATOR_LABEL = f"{_PREFIX}/operator-name"
JOB_LABEL = f"{_PREFIX}/job-name"
TYPE_LABEL = f"{_PREFIX}/replica-type"
INDEX_LABEL = f"{_PREFIX}/replica-index"
ROLE_LABEL = f"{_PREFIX}/job-role"
"""Has the value ``master`` on the replica whose log shows the job's progress: the one that decides, else
worker 0."""
CLUSTER_LABEL = f"{names.GROUP}/cluster"
"""`KubeflowFramework.cluster_id` of the cluster that was described to the pod when it was made."""

VOLCANO = "volcano"
_GANG_FIELDS = ("minMember", "queue", "minResources", "priorityClassName")


@dataclass(frozen=True)
class KubeflowFramework:
    """What sets one of Kubeflow's kinds apart from the others.

    Attributes:
        operator: value of the label with the operator's name, which distinguishes the pods of the kinds.
        container: name of the container that runs the replica's program; if a template has no such container,
            the first one does.
        port_name, port: where a replica listens, unless its container has a port of this name.
        variables: what a replica must know of the cluster, as environment variables by name.
        cluster_id: hash of what all replicas must agree on. Pods with another hash belong to an earlier
            cluster.
        in_every_container: whether the pod's other containers get the variables, too.
    """

    operator: str
    container: str
    port_name: str
    port: int
    variables: Callable[[Any, ReplicaType, int, InstallationSettings], Mapping[str, str]]
    cluster_id: Callable[[Any], str]
    in_every_container: bool = False

    def port_of(self, job: KubeflowJob, kind: ReplicaType) -> int:
        """The port of a type's replicas."""
        ports = container_of(job.spec.replicas[kind].template, self.container).get("ports") or ()
        return next((int(p["containerPort"]) for p in ports if p.get("name") == self.port_name), self.port)

    def labels(self, job: KubeflowJob, kind: ReplicaType) -> dict[str, str]:
        """The labels that all pods of a type carry."""
        return {OPERATOR_LABEL: self.operator, JOB_LABEL: job.metadata.name, TYPE_LABEL: kind.slug}


def pod_selector(job: KubeflowJob, kind: ReplicaType) -> str:
    """Select the pods of a type."""
    return f"{JOB_LABEL}={job.metadata.name},{TYPE_LABEL}={kind.slug}"


def make_pod(
    framework: KubeflowFramework,
    job: KubeflowJob,
    kind: ReplicaType,
    index: int,
    settings: InstallationSettings,
) -> dict[str, Any]:
    """A replica's pod: the user's template, overlaid with its place in the cluster."""
    spec = job.spec.replicas[kind]
    labels = framework.labels(job, kind) | _own_labels(framework, job, kind, index)
    made = manifests.pod_from_template(replica_name(job, kind, index), job, spec.template, labels)
    # With Always and OnFailure the kubelet restarts containers; with ExitCode it must not, so that the
    # controller sees the exit code.
    by_node = spec.policy if spec.policy is not RestartPolicy.EXIT_CODE else RestartPolicy.NEVER
    made["spec"]["restartPolicy"] = str(by_node)
    if job.spec.policies.scheduling_policy is not None:
        made["metadata"].setdefault("annotations", {}).update(_gang_annotations(job, kind))
        made["spec"].setdefault("schedulerName", VOLCANO)
    container = container_of(made, framework.container)
    mark_own_container(made, container["name"])
    ports = list(container.get("ports") or ())
    if all(port.get("name") != framework.port_name for port in ports):
        own = {"name": framework.port_name, "containerPort": framework.port_of(job, kind)}
        container["ports"] = [*ports, own]
    variables = framework.variables(job, kind, index, settings)
    for target in made["spec"]["containers"] if framework.in_every_container else [container]:
        if variables:
            own_env = [{"name": name, "value": value} for name, value in variables.items()]
            target["env"] = manifests.merge_env(target.get("env") or (), own_env)
    return made


def make_service(
    framework: KubeflowFramework, job: KubeflowJob, kind: ReplicaType, index: int
) -> dict[str, Any]:
    """The headless service that gives a replica its address."""
    own = framework.labels(job, kind) | {INDEX_LABEL: str(index)}
    port = (framework.port_name, framework.port_of(job, kind))
    return manifests.headless_service(replica_name(job, kind, index), job, own, [port])


def make_pod_group(job: KubeflowJob) -> dict[str, Any] | None:
    """Volcano's PodGroup of a job with a scheduling policy; None without one."""
    policy = job.spec.policies.scheduling_policy
    if policy is None:
        return None
    group, name = api.POD_GROUPS, job.metadata.name
    made = manifests.owned_manifest(group.api_version, group.kind, name, job, {JOB_LABEL: name})
    group_spec = {
        "minMember": policy.min_available or len(list(list_replicas(job))),
        "queue": policy.queue,
        "minResources": policy.min_resources,
        "priorityClassName": policy.priority_class,
    }
    made["spec"] = {key: value for key, value in group_spec.items() if value}
    return made


def pod_group_change(present: Manifest, desired: Manifest) -> dict[str, Any] | None:
    """The merge patch that gives a PodGroup the desired spec, or None. Fields of other writers stay."""
    now, then = present.get("spec") or {}, desired["spec"]
    # Volcano fills in its default queue if none is named.
    queue = then.get("queue") or ("default" if now.get("queue") else None)
    return merge_patch(now, {key: then.get(key) for key in _GANG_FIELDS} | {"queue": queue})


def _own_labels(
    framework: KubeflowFramework, job: KubeflowJob, kind: ReplicaType, index: int
) -> dict[str, str]:
    own = {INDEX_LABEL: str(index), CLUSTER_LABEL: framework.cluster_id(job)}
    worker_decides = kind.is_worker and not any(k.decides for k in job.spec.replicas)
    return own | ({ROLE_LABEL: "master"} if kind.decides or (worker_decides and index == 0) else {})


def _gang_annotations(job: KubeflowJob, kind: ReplicaType) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": job.metadata.name, "volcano.sh/task-spec": kind.slug}
