"""Manifests of a TrainingJob's pods and of their services."""

import copy
from typing import Any

from edl_workflows.jobs import manifests, names
from edl_workflows.jobs.training_job import members
from edl_workflows.jobs.training_job.model import Resources, TrainingJob
from edl_workflows.jobs.training_job.types import (
    ETCD_IMAGE,
    ETCD_PEER_PORT,
    ETCD_PORT,
    GPU,
    LEGACY_GPU,
    Launcher,
    Role,
)

JOB_LABEL = "paddlepaddle.org/job-name"
ROLE_LABEL = "paddlepaddle.org/replica-type"
INDEX_LABEL = "paddlepaddle.org/replica-index"
CLUSTER_LABEL = f"{names.GROUP}/cluster"
"""`members.cluster_id` of the cluster that the pod was told of."""
UPSTREAM_LABELS = {
    Role.MASTER: "paddle-job-master",
    Role.PSERVER: "paddle-job-pserver",
    Role.TRAINER: "paddle-job",
}
"""What upstream's entry script and its users select pods by; the value is the job's name."""
LIBRARIES = "LD_LIBRARY_PATH"
MOUNT = "mount-path"
"""Name of the empty folder that a ``mountPath`` without volumes gives each pod."""


def labels(job: TrainingJob, role: Role) -> dict[str, str]:
    """What all pods of a role carry."""
    return {JOB_LABEL: job.metadata.name, ROLE_LABEL: str(role), UPSTREAM_LABELS[role]: job.metadata.name}


def selector(job: TrainingJob, role: Role) -> str:
    """Selects the pods of a role."""
    return f"{JOB_LABEL}={job.metadata.name},{ROLE_LABEL}={role}"


def pod(job: TrainingJob, role: Role, index: int) -> dict[str, Any]:
    """A pod: the user's template below, upstream's fields over it."""
    own = {INDEX_LABEL: str(index), CLUSTER_LABEL: members.cluster_id(job)}
    made = manifests.owned_manifest("v1", "Pod", members.name(job, role, index), job, labels(job, role) | own)
    template = manifests.overlay_template(
        copy.deepcopy(job.spec.template), {"spec": _pod_spec(job, role, index)}
    )
    made["metadata"]["labels"] = manifests.template_labels(template["metadata"]) | made["metadata"]["labels"]
    if annotations := template["metadata"].get("annotations"):
        made["metadata"]["annotations"] = annotations
    made["spec"] = template["spec"]
    return made


def service(job: TrainingJob, role: Role, index: int) -> dict[str, Any]:
    """The headless service that gives a pod its address, the same for every pod that takes its place."""
    own = labels(job, role) | {INDEX_LABEL: str(index)}
    made = manifests.owned_manifest("v1", "Service", members.name(job, role, index), job, own)
    ports = members.ports(job, role)
    if role is Role.MASTER and members.own_etcd(job):
        ports = [*ports, ("etcd-port", ETCD_PORT)]
    made["spec"] = {
        "clusterIP": "None",
        "selector": {key: own[key] for key in (JOB_LABEL, ROLE_LABEL, INDEX_LABEL)},
        "ports": [{"name": n, "port": p, "targetPort": p, "protocol": "TCP"} for n, p in ports],
        "publishNotReadyAddresses": True,
    }
    return made


def _pod_spec(job: TrainingJob, role: Role, index: int) -> dict[str, Any]:
    spec = job.spec
    mounted = _mounts(job)
    found: dict[str, Any] = {
        "restartPolicy": "Never",  # the controller replaces pods, and counts
        "containers": [_container(job, role, index, mounted)],
        "volumes": [*spec.volumes, *([{"name": MOUNT, "emptyDir": {}}] if _scratch(job) else [])],
        "nodeSelector": spec.node_selector or spec.node_selector_lower,
        "imagePullSecrets": spec.image_pull_secrets,
    }
    if role is Role.MASTER and members.own_etcd(job):
        found["containers"].append(_etcd(job, index))
    if spec.host_network or spec.host_network_lower:
        # Names of services are known to the cluster's own name server only.
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return copy.deepcopy({key: value for key, value in found.items() if value})


def _container(job: TrainingJob, role: Role, index: int, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": str(role),
        "image": job.spec.image,
        "command": _command(job, role),
        "workingDir": job.spec.trainer.workspace if _runs_shell(job, role) else "",
        "env": _environment(job, role, index),
        "ports": [{"name": n, "containerPort": p} for n, p in members.ports(job, role)],
        "resources": _resources(job, role),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # its last lines become part of the job's message
    }
    return {key: value for key, value in found.items() if value}


def _environment(job: TrainingJob, role: Role, index: int) -> list[dict[str, Any]]:
    """What says who the pod is can't be changed by the template; where its libraries lie can."""
    containers = (job.spec.template.get("spec") or {}).get("containers") or [{}]
    own = {variable["name"] for variable in containers[0].get("env") or ()} & {LIBRARIES}
    return [variable for variable in members.environment(job, role, index) if variable["name"] not in own]


def _runs_shell(job: TrainingJob, role: Role) -> bool:
    """Whether our command, and not the entry script, has to go to the workspace."""
    return job.spec.launcher is Launcher.SH and role is Role.TRAINER


def _command(job: TrainingJob, role: Role) -> list[str]:
    spec = job.spec
    if spec.launcher is Launcher.SH:
        entrypoints = {
            Role.MASTER: spec.master.entrypoint if spec.master else "",
            Role.PSERVER: spec.pserver.entrypoint if spec.pserver else "",
            Role.TRAINER: spec.trainer.entrypoint,
        }
        return ["sh", "-c", entrypoints[role]]
    if role is Role.MASTER:
        return ["paddle_k8s", "start_master"]
    if spec.fault_tolerant:
        return ["paddle_k8s", f"start_new_{role}"]
    return ["paddle_k8s", f"start_{role}", *(["v2"] if role is Role.TRAINER else [])]


def _etcd(job: TrainingJob, index: int) -> dict[str, Any]:
    client, peer = f"http://$(POD_IP):{ETCD_PORT}", f"http://$(POD_IP):{ETCD_PEER_PORT}"
    return {
        "name": "etcd",
        "image": ETCD_IMAGE,
        "command": [
            "etcd", "-name", "etcd0", "-advertise-client-urls", client,
            "-listen-client-urls", f"http://0.0.0.0:{ETCD_PORT}", "-initial-advertise-peer-urls", peer,
            "-listen-peer-urls", f"http://0.0.0.0:{ETCD_PEER_PORT}", "-initial-cluster", f"etcd0={peer}",
            "-initial-cluster-state", "new",
        ],
        "env": [v for v in members.environment(job, Role.MASTER, index) if v["name"] == "POD_IP"],
        "ports": [
            {"name": "etcd-port", "containerPort": ETCD_PORT},
            {"name": "etcd-peer", "containerPort": ETCD_PEER_PORT},
        ],
    }  # fmt: skip


def _resources(job: TrainingJob, role: Role) -> dict[str, Any]:
    specs = {Role.MASTER: job.spec.master, Role.PSERVER: job.spec.pserver, Role.TRAINER: job.spec.trainer}
    chosen = specs[role]
    own = chosen.resources if chosen is not None else Resources()
    found = {"limits": _renamed(own.limits), "requests": _renamed(own.requests)}
    return {part: amounts for part, amounts in found.items() if amounts}


def _renamed(amounts: dict[str, str]) -> dict[str, str]:
    """GPUs by the name that clusters know today."""
    return {GPU if key == LEGACY_GPU else key: amount for key, amount in amounts.items()}


def _scratch(job: TrainingJob) -> bool:
    return bool(job.spec.mount_path) and not job.spec.volumes


def _mounts(job: TrainingJob) -> list[dict[str, Any]]:
    mounts = [*job.spec.volume_mounts, *job.spec.volume_mounts_lower]
    path = job.spec.mount_path
    if not path or any(mount["mountPath"] == path for mount in mounts):
        return mounts
    first = MOUNT if _scratch(job) else job.spec.volumes[0]["name"]
    return [*mounts, {"name": first, "mountPath": path}]
