"""Which pods a TrainingJob has, where they listen, and what each is told of the others."""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

from edl_workflows.jobs.objects import parse_quantity
from edl_workflows.jobs.training_job.model import Resources, TrainingJob
from edl_workflows.jobs.training_job.types import ETCD_PORT, GPU, LEGACY_GPU, MASTER_PORT, Launcher, Role

Variable = dict[str, Any]


def name(job: TrainingJob, role: Role, index: int) -> str:
    """Name of a pod and of its service: ``<job>-<role>-<index>``."""
    return f"{job.metadata.name}-{role}-{index}"


def places(job: TrainingJob) -> Iterator[tuple[Role, int]]:
    """All pods that the job is to have, in the order in which they are started."""
    for role, count in job.spec.counts.items():
        for index in range(count):
            yield role, index


def with_trainers(job: TrainingJob, count: int) -> TrainingJob:
    """The same job with so many trainers."""
    fixed = {"min_instance": count, "max_instance": count, "parallelism": count}
    trainer = job.spec.trainer.model_copy(update=fixed)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"trainer": trainer})})


def addressed(job: TrainingJob, role: Role) -> bool:
    """Whether the pods of a role have a service each. Trainers that come and go are known to nobody."""
    return role.serves or not job.spec.fault_tolerant


def own_etcd(job: TrainingJob) -> bool:
    """Whether an etcd runs beside the master, as upstream's entry script wants it."""
    named = job.spec.master is not None and job.spec.master.etcd_endpoint
    return job.spec.launcher is Launcher.PADDLE_K8S and not named


def ports(job: TrainingJob, role: Role) -> list[tuple[str, int]]:
    """Names and numbers of the ports of a role's container."""
    if role is Role.MASTER:
        return [("master-port", MASTER_PORT)]
    return [(f"jobport-{port}", port) for port in job.spec.ports]


def address(job: TrainingJob, role: Role, index: int) -> str:
    """Where a pod's program listens, as ``name.namespace.svc:port``."""
    return f"{host(job, role, index)}:{ports(job, role)[0][1]}"


def host(job: TrainingJob, role: Role, index: int) -> str:
    """The name by which a pod is reached."""
    return f"{name(job, role, index)}.{job.metadata.namespace or 'default'}.svc"


def told_trainers(job: TrainingJob) -> int:
    """The number of trainers that pods are told: that of a fault-tolerant job may change, its minimum does
    not.
    """
    return job.spec.trainer.min_instance if job.spec.fault_tolerant else job.spec.trainer.wanted


def cluster_id(job: TrainingJob) -> str:
    """Hash of what pservers and trainers must agree on, and of what its pservers are. Pods of another hash
    belong to an earlier cluster."""
    counts = job.spec.counts
    trainers = 0 if job.spec.fault_tolerant else counts[Role.TRAINER]
    size = job.spec.pserver.resources.to_dict() if job.spec.pserver is not None else {}
    servers = [counts.get(Role.PSERVER, 0), size]
    text = json.dumps([job.spec.fault_tolerant, servers, trainers, list(job.spec.ports)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def environment(job: TrainingJob, role: Role, index: int) -> list[Variable]:
    """Upstream's variables, and the addresses that its entry script looks up by labels, by name."""
    spec = job.spec
    trainers, servers = told_trainers(job), spec.counts.get(Role.PSERVER, 0)
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


def _addresses(job: TrainingJob, role: Role, index: int) -> dict[str, object]:
    """In the names that Paddle itself reads since 1.3 (``PaddleCloudRoleMaker``), beside upstream's older
    ones.
    """
    counts = job.spec.counts
    listed = {
        one: [address(job, one, i) for i in range(counts.get(one, 0))] for one in Role if addressed(job, one)
    }
    found: dict[str, object] = {"TRAINING_ROLE": role.upper(), "PADDLE_TRAINERS_NUM": told_trainers(job)}
    if role is not Role.MASTER:
        found["PADDLE_TRAINER_ID" if role is Role.TRAINER else "PADDLE_PSERVER_ID"] = index
    if role is Role.TRAINER:
        found["PADDLE_INIT_TRAINER_ID"] = index
    if addressed(job, role):
        found["PADDLE_CURRENT_ENDPOINT"] = listed[role][index]
    if counts.get(Role.MASTER):
        found["PADDLE_MASTER"] = listed[Role.MASTER][0]
        found["ETCD_ENDPOINT"] = _etcd(job)
    if counts.get(Role.PSERVER):
        servers = range(counts[Role.PSERVER])
        found["PADDLE_PSERVERS_IP_PORT_LIST"] = ",".join(listed[Role.PSERVER])
        found["PADDLE_INIT_PSERVERS"] = ",".join(host(job, Role.PSERVER, i) for i in servers)
    if Role.TRAINER in listed:
        found["PADDLE_TRAINER_ENDPOINTS"] = ",".join(listed[Role.TRAINER])
    return {key: value for key, value in found.items() if value != ""}


def _etcd(job: TrainingJob) -> str:
    named = job.spec.master.etcd_endpoint if job.spec.master else ""
    return named or (f"http://{host(job, Role.MASTER, 0)}:{ETCD_PORT}" if own_etcd(job) else "")


def _gpus(resources: Resources) -> int:
    """GPUs of a trainer, by its limit: that is what Kubernetes gives, whatever the request says."""
    return sum(int(parse_quantity(resources.limits.get(key, "0"))) for key in (GPU, LEGACY_GPU))


def _cores(resources: Resources) -> int:
    """Whole cores of a trainer, rounded up."""
    cpu = resources.requests.get("cpu") or resources.limits.get("cpu") or "1"
    return max(1, math.ceil(parse_quantity(cpu)))
