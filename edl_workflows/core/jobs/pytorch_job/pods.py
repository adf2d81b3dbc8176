"""What each replica of a PyTorchJob is told about the others: the variables of ``torch.distributed`` and of
``torchrun``, as training-operator 1.9 sets them.
"""

import hashlib
import json

from edl_workflows.core.jobs.kubeflow.model import ReplicaType, list_replicas, replica_host
from edl_workflows.core.jobs.kubeflow.pods import KubeflowFramework
from edl_workflows.core.jobs.pytorch_job.model import PyTorchJob, TorchReplicaType
from edl_workflows.core.kubernetes import names

_RANKS = (names.ENV_RANK, names.ENV_PET_NODE_RANK)


def make_variables(job: PyTorchJob, kind: ReplicaType, index: int) -> dict[str, str]:
    """The environment variables of a replica, by name.

    ``MASTER_ADDR``, ``RANK`` and their companions exist only in jobs with a master: it has rank 0, worker n
    has rank n + 1. ``WORLD_SIZE`` counts processes; an ``nprocPerNode`` that is not a number counts as 1,
    since only torchrun can determine its value.
    """
    spec = job.spec
    variables = {"PYTHONUNBUFFERED": "1", names.ENV_PET_NPROC_PER_NODE: spec.processes_per_pod}
    if TorchReplicaType.MASTER in spec.replicas:
        host = replica_host(job, TorchReplicaType.MASTER, 0)
        port = str(PYTORCH.port_of(job, TorchReplicaType.MASTER))
        processes = int(spec.processes_per_pod) if spec.processes_per_pod.isdecimal() else 1
        rank = str(index if kind is TorchReplicaType.MASTER else index + 1)
        variables |= {
            names.ENV_TORCH_MASTER_ADDR: host,
            names.ENV_TORCH_MASTER_PORT: port,
            names.ENV_PET_MASTER_ADDR: host,
            names.ENV_PET_MASTER_PORT: port,
            names.ENV_WORLD_SIZE: str(spec.total_replicas * processes),
            **dict.fromkeys(_RANKS, rank),
        }
    if spec.elastic_policy is None:
        return variables | {names.ENV_PET_NNODES: str(spec.total_replicas)}
    return variables | _rendezvous_variables(job)


def _rendezvous_variables(job: PyTorchJob) -> dict[str, str]:
    """``elasticPolicy`` as the variables that torchrun reads."""
    policy, bounds = job.spec.elastic_policy, job.spec.worker_bounds
    assert policy is not None
    assert bounds is not None, "checked by the model"
    host = policy.rdzv_host or replica_host(job, TorchReplicaType.WORKER, 0)
    port = policy.rdzv_port or PYTORCH.port_of(job, TorchReplicaType.WORKER)
    options = ",".join(f"{option.key}={option.value}" for option in policy.rdzv_conf)
    variables = {
        names.ENV_PET_NNODES: f"{bounds[0]}:{bounds[1]}",
        "PET_RDZV_BACKEND": policy.rdzv_backend or "c10d",
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
        "PET_RDZV_ID": policy.rdzv_id or "",
        "PET_RDZV_CONF": options,
        "PET_MAX_RESTARTS": "" if policy.max_restarts is None else str(policy.max_restarts),
        # Upstream writes the empty string, which torchrun can't read as a number.
        "PET_STANDALONE": "1" if policy.standalone else "",
    }
    return {name: value for name, value in variables.items() if value}


def _cluster_id(job: PyTorchJob) -> str:
    """Hash of what all replicas are told. With ``elasticPolicy`` it does not include the number of workers,
    which may change.
    """
    if "static-cluster" in job.compat:
        return "static"
    kind, index = next(list_replicas(job))
    variables = make_variables(job, kind, index)
    if job.spec.elastic_policy is not None:
        variables.pop(names.ENV_WORLD_SIZE, None)
    return hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).hexdigest()[:10]


PYTORCH = KubeflowFramework(
    operator="pytorchjob-controller",
    container="pytorch",
    port_name="pytorchjob-port",
    port=23456,
    variables=lambda job, kind, index, _settings: make_variables(job, kind, index),
    cluster_id=_cluster_id,
    in_every_container=True,
)
