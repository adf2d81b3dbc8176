"""Which pods a TrainingJob has, their addresses and environment, and the manifests of pods and services."""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.training_job.model import TrainingJob, TrainingResources
from edl_workflows.core.jobs.training_job.types import (
    ETCD_IMAGE,
    ETCD_PEER_PORT,
    ETCD_PORT,
    GPU,
    LEGACY_GPU,
    MASTER_PORT,
    Launcher,
    TrainingRole,
)
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.core.kubernetes.pod_state import mark_own_container

Variable = dict[str, Any]


def replica_name(job: TrainingJob, role: TrainingRole, index: int) -> str:
    """Name of a pod and of its service: ``<job>-<role>-<index>``."""
    return f"{job.metadata.name}-{role}-{index}"


def list_replicas(job: TrainingJob) -> Iterator[tuple[TrainingRole, int]]:
    """All pods that the job wants, in the order in which they are started."""
    for role, count in job.spec.counts.items():
        for index in range(count):
            yield role, index


def with_trainers(job: TrainingJob, count: int) -> TrainingJob:
    """The same job with this number of trainers."""
    fixed = {"min_instance": count, "max_instance": count, "parallelism": count}
    trainer = job.spec.trainer.model_copy(update=fixed)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"trainer": trainer})})


def has_service(job: TrainingJob, role: TrainingRole) -> bool:
    """Whether each pod of a role has a service. Trainers of a fault-tolerant job have none: no other pod
    needs to know them."""
    return role.serves or not job.spec.fault_tolerant


def runs_own_etcd(job: TrainingJob) -> bool:
    """Whether an etcd runs in the master's pod, as upstream's entry script needs it."""
    named = job.spec.master is not None and job.spec.master.etcd_endpoint
    return job.spec.launcher is Launcher.PADDLE_K8S and not named


def ports_of(job: TrainingJob, role: TrainingRole) -> list[tuple[str, int]]:
    """Names and numbers of the ports of a role's container."""
    if role is TrainingRole.MASTER:
        return [("master-port", MASTER_PORT)]
    return [(f"jobport-{port}", port) for port in job.spec.ports]


def address_of(job: TrainingJob, role: TrainingRole, index: int) -> str:
    """Where a pod's program listens, as ``name.namespace.svc:port``."""
    return f"{host_of(job, role, index)}:{ports_of(job, role)[0][1]}"


def host_of(job: TrainingJob, role: TrainingRole, index: int) -> str:
    """The name by which a pod is reached."""
    return f"{replica_name(job, role, index)}.{job.metadata.namespace or 'default'}.svc"


def announced_trainers(job: TrainingJob) -> int:
    """The number of trainers that pods are told. In a fault-tolerant job it is the minimum, since the actual
    number may change.
    """
    return job.spec.trainer.min_instance if job.spec.fault_tolerant else job.spec.trainer.desired


def cluster_id(job: TrainingJob) -> str:
    """Hash of what pservers and trainers must agree on, and of the pservers' resources. Pods with another
    hash belong to an earlier cluster."""
    counts = job.spec.counts
    trainers = 0 if job.spec.fault_tolerant else counts[TrainingRole.TRAINER]
    size = job.spec.pserver.resources.to_dict() if job.spec.pserver is not None else {}
    servers = [counts.get(TrainingRole.PSERVER, 0), size]
    text = json.dumps([job.spec.fault_tolerant, servers, trainers, list(job.spec.ports)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def make_environment(job: TrainingJob, role: TrainingRole, index: int) -> list[Variable]:
    """Upstream's variables, and variables with the addresses that upstream's entry script would otherwise
    look up by labels."""
    spec = job.spec
    trainers, servers = announced_trainers(job), spec.counts.get(TrainingRole.PSERVER, 0)
    gpus = _gpus(spec.trainer.resources)
    values = {
        "PADDLE_JOB_NAME": job.metadata.name,
        "TRAINERS": trainers,
        "PSERVERS": servers,
        "ENTRY": spec.trainer.entrypoint,
        "TOPOLOGY": spec.trainer.entrypoint,
        "TRAINER_PACKAGE": spec.trainer.workspace,
        "PADDLE_INIT_PORT": spec.first_port,
        "PADDLE_INIT_TRAINER_COUNT": gpus or _cores(spec.trainer.resources),
        "PADDLE_INIT_PORTS_NUM": spec.ports_num or 1,
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": spec.ports_num_for_sparse or 1,
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": trainers,
        "PADDLE_INIT_NUM_PASSES": spec.all_passes,
        "PADDLE_INIT_USE_GPU": int(gpus > 0),
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
        **_addresses(job, role, index),
    }
    fields = {"NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    return [
        *({"name": key, "value": str(value)} for key, value in values.items()),
        *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
    ]


def _addresses(job: TrainingJob, role: TrainingRole, index: int) -> dict[str, object]:
    """Variables with addresses, by the names that Paddle itself reads since 1.3 (``PaddleCloudRoleMaker``)
    and by upstream's older ones.
    """
    counts = job.spec.counts
    listed = {
        peer_role: [address_of(job, peer_role, i) for i in range(counts.get(peer_role, 0))]
        for peer_role in TrainingRole
        if has_service(job, peer_role)
    }
    variables: dict[str, object] = {
        "TRAINING_ROLE": role.upper(),
        "PADDLE_TRAINERS_NUM": announced_trainers(job),
    }
    if role is not TrainingRole.MASTER:
        variables["PADDLE_TRAINER_ID" if role is TrainingRole.TRAINER else "PADDLE_PSERVER_ID"] = index
    if role is TrainingRole.TRAINER:
        variables["PADDLE_INIT_TRAINER_ID"] = index
    if has_service(job, role):
        variables["PADDLE_CURRENT_ENDPOINT"] = listed[role][index]
    if counts.get(TrainingRole.MASTER):
        variables["PADDLE_MASTER"] = listed[TrainingRole.MASTER][0]
        variables["ETCD_ENDPOINT"] = _etcd_endpoint(job)
    if counts.get(TrainingRole.PSERVER):
        servers = range(counts[TrainingRole.PSERVER])
        variables["PADDLE_PSERVERS_IP_PORT_LIST"] = ",".join(listed[TrainingRole.PSERVER])
        variables["PADDLE_INIT_PSERVERS"] = ",".join(host_of(job, TrainingRole.PSERVER, i) for i in servers)
    if TrainingRole.TRAINER in listed:
        variables["PADDLE_TRAINER_ENDPOINTS"] = ",".join(listed[TrainingRole.TRAINER])
    return {key: value for key, value in variables.items() if value != ""}


def _etcd_endpoint(job: TrainingJob) -> str:
    named = job.spec.master.etcd_endpoint if job.spec.master else ""
    return named or (
        f"http://{host_of(job, TrainingRole.MASTER, 0)}:{ETCD_PORT}" if runs_own_etcd(job) else ""
    )


def _gpus(resources: TrainingResources) -> int:
    """A trainer's GPUs according to its limits, which decide what Kubernetes provides, whatever the requests
    are."""
    return sum(int(parse_quantity(resources.limits.get(key, "0"))) for key in (GPU, LEGACY_GPU))


def _cores(resources: TrainingResources) -> int:
    """Whole cores of a trainer, rounded up."""
    cpu = resources.requests.get("cpu") or resources.limits.get("cpu") or "1"
    return max(1, math.ceil(parse_quantity(cpu)))


JOB_LABEL = "paddlepaddle.org/job-name"
ROLE_LABEL = "paddlepaddle.org/replica-type"
INDEX_LABEL = "paddlepaddle.org/replica-index"
CLUSTER_LABEL = f"{names.GROUP}/cluster"
"""`cluster_id` of the cluster that was described to the pod when it was made."""
UPSTREAM_LABELS = {
    TrainingRole.MASTER: "paddle-job-master",
    TrainingRole.PSERVER: "paddle-job-pserver",
    TrainingRole.TRAINER: "paddle-job",
}
"""Labels by which upstream's entry script and its users select pods; the value is the job's name."""
LIBRARIES = "LD_LIBRARY_PATH"
MOUNT = "mount-path"
"""Name of the emptyDir volume that each pod gets if the job has a ``mountPath`` but no volumes."""


def role_labels(job: TrainingJob, role: TrainingRole) -> dict[str, str]:
    """What all pods of a role carry."""
    return {JOB_LABEL: job.metadata.name, ROLE_LABEL: str(role), UPSTREAM_LABELS[role]: job.metadata.name}


def pod_selector(job: TrainingJob, role: TrainingRole) -> str:
    """Select the pods of a role."""
    return f"{JOB_LABEL}={job.metadata.name},{ROLE_LABEL}={role}"


def make_pod(job: TrainingJob, role: TrainingRole, index: int) -> dict[str, Any]:
    """A pod: the user's template, overridden by upstream's fields."""
    own = role_labels(job, role) | {INDEX_LABEL: str(index), CLUSTER_LABEL: cluster_id(job)}
    template = manifests.overlay_template(job.spec.template, {"spec": _pod_spec(job, role, index)})
    made = manifests.pod_from_template(replica_name(job, role, index), job, template, own)
    mark_own_container(made, str(role))
    return made


def make_service(job: TrainingJob, role: TrainingRole, index: int) -> dict[str, Any]:
    """The headless service that gives a pod its address, which stays the same when the pod is replaced."""
    own = role_labels(job, role) | {INDEX_LABEL: str(index)}
    ports = ports_of(job, role)
    if role is TrainingRole.MASTER and runs_own_etcd(job):
        ports = [*ports, ("etcd-port", ETCD_PORT)]
    selected = {key: own[key] for key in (JOB_LABEL, ROLE_LABEL, INDEX_LABEL)}
    return manifests.headless_service(replica_name(job, role, index), job, own, ports, selected)


def _pod_spec(job: TrainingJob, role: TrainingRole, index: int) -> dict[str, Any]:
    spec = job.spec
    mounted = _mounts(job)
    pod_spec: dict[str, Any] = {
        "restartPolicy": "Never",  # the controller replaces pods, and counts
        "containers": [_container(job, role, index, mounted)],
        "volumes": [*spec.volumes, *([{"name": MOUNT, "emptyDir": {}}] if _scratch(job) else [])],
        "nodeSelector": spec.node_selector or spec.node_selector_lower,
        "imagePullSecrets": spec.image_pull_secrets,
    }
    if role is TrainingRole.MASTER and runs_own_etcd(job):
        pod_spec["containers"].append(_etcd_container(job, index))
    if spec.host_network or spec.host_network_lower:
        # Only the cluster's DNS knows the names of services.
        pod_spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {key: value for key, value in pod_spec.items() if value}


def _container(
    job: TrainingJob, role: TrainingRole, index: int, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": str(role),
        "image": job.spec.image,
        "command": _command(job, role),
        "workingDir": job.spec.trainer.workspace if _runs_shell(job, role) else "",
        "env": _environment(job, role, index),
        "ports": [{"name": n, "containerPort": p} for n, p in ports_of(job, role)],
        "resources": _resources(job, role),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the job's message quotes its last lines
    }
    return {key: value for key, value in container.items() if value}


def _environment(job: TrainingJob, role: TrainingRole, index: int) -> list[dict[str, Any]]:
    """The variables of a pod. The template can't override them, except for the path of libraries."""
    containers = (job.spec.template.get("spec") or {}).get("containers") or [{}]
    own = {variable["name"] for variable in containers[0].get("env") or ()} & {LIBRARIES}
    return [variable for variable in make_environment(job, role, index) if variable["name"] not in own]


def _runs_shell(job: TrainingJob, role: TrainingRole) -> bool:
    """Whether the container itself must start in the workspace, because no entry script changes to it."""
    return job.spec.launcher is Launcher.SH and role is TrainingRole.TRAINER


def _command(job: TrainingJob, role: TrainingRole) -> list[str]:
    spec = job.spec
    if spec.launcher is Launcher.SH:
        entrypoints = {
            TrainingRole.MASTER: spec.master.entrypoint if spec.master else "",
            TrainingRole.PSERVER: spec.pserver.entrypoint if spec.pserver else "",
            TrainingRole.TRAINER: spec.trainer.entrypoint,
        }
        return ["sh", "-c", entrypoints[role]]
    if role is TrainingRole.MASTER:
        return ["paddle_k8s", "start_master"]
    if spec.fault_tolerant:
        return ["paddle_k8s", f"start_new_{role}"]
    return ["paddle_k8s", f"start_{role}", *(["v2"] if role is TrainingRole.TRAINER else [])]


def _etcd_container(job: TrainingJob, index: int) -> dict[str, Any]:
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
        "env": [v for v in make_environment(job, TrainingRole.MASTER, index) if v["name"] == "POD_IP"],
        "ports": [
            {"name": "etcd-port", "containerPort": ETCD_PORT},
            {"name": "etcd-peer", "containerPort": ETCD_PEER_PORT},
        ],
        # Pods that Pod Security admits without etcd are admitted with it.
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip


def _resources(job: TrainingJob, role: TrainingRole) -> dict[str, Any]:
    specs = {
        TrainingRole.MASTER: job.spec.master,
        TrainingRole.PSERVER: job.spec.pserver,
        TrainingRole.TRAINER: job.spec.trainer,
    }
    chosen = specs[role]
    own = chosen.resources if chosen is not None else TrainingResources()
    resources = {"limits": _renamed(own.limits), "requests": _renamed(own.requests)}
    return {part: amounts for part, amounts in resources.items() if amounts}


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
