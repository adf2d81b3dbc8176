"""Environment variables: those of the training pod, which the agent and training code read, and those that
the agent sets for the training process.

The names are constants of `edl_workflows.core.kubernetes.names`.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.training import addresses
from edl_workflows.training.checkpoints.slot_memory import SHARED_MEMORY
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder, node_folder

_ANY_INTERFACE = "0.0.0.0"  # noqa: S104 - what `addresses.listen` says on a real cluster


def cluster_version(environ: Mapping[str, str]) -> int:
    """Cluster version of this training process, as set by the agent."""
    return _number(environ, names.ENV_CLUSTER_VERSION)


def open_snapshots(environ: Mapping[str, str]) -> SnapshotFolder | None:
    """The node's copies of the model in shared memory; None if the agent keeps none."""
    folder = environ.get(names.ENV_SNAPSHOT_DIR, "")
    return SnapshotFolder(Path(folder)) if folder else None


def snapshot_folder(environ: Mapping[str, str], node: NodeRef) -> Path:
    """Folder for the node's copies of the model. It stays the same when the agent restarts in its pod.
    Without the job's uid, which the controller sets, each start has its own folder, because job names are
    reused."""
    base = Path(environ.get(names.ENV_SHARED_MEMORY, "") or SHARED_MEMORY)
    return node_folder(base, environ.get(names.ENV_JOB_UID, "") or secrets.token_hex(8), node.type, node.id)


@dataclass(frozen=True)
class NodeEnvironment:
    """What the agent and the training process must know about their node.

    Attributes:
        master: base URL of the master's API.
        token: bearer token of the job.
        job, namespace, pod: their names.
        node: type and id of the node.
        rank: rank of the node among the nodes of its type.
    """

    master: str
    token: str
    job: str
    namespace: str
    pod: str
    node: NodeRef
    rank: int

    def __repr__(self) -> str:
        return f"NodeEnvironment({self.namespace}/{self.job} {self.node}, master {self.master})"

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read all variables.

        Raises:
            InvalidError: a variable is missing or malformed; the message names it.
        """
        return cls(
            master="http://" + addresses.resolve(_required(environ, names.ENV_MASTER_ADDR)),
            token=_required(environ, names.ENV_JOB_TOKEN),
            job=_required(environ, names.ENV_JOB_NAME),
            namespace=_required(environ, names.ENV_NAMESPACE),
            pod=_required(environ, names.ENV_POD_NAME),
            node=_node(environ),
            rank=_number(environ, names.ENV_NODE_RANK),
        )

    def listen_address(self, version: int) -> str:
        """Address at which other nodes reach this node's process of a cluster version."""
        host, port = addresses.listen(names.NODE_PORTS[self.node.type][version % 2])
        if host == _ANY_INTERFACE:
            return names.node_address(self.job, self.namespace, self.node.type, self.node.id, version)
        return f"{host}:{port}"  # without a pod network, the process's own port is used


def _node(environ: Mapping[str, str]) -> NodeRef:
    node_type, node_id = _required(environ, names.ENV_NODE_TYPE), _number(environ, names.ENV_NODE_ID)
    try:
        return NodeRef(type=node_type, id=node_id)
    except ValidationError as error:
        raise InvalidError(
            f"environment variable {names.ENV_NODE_TYPE} is {node_type!r}: "
            f"it must be one of {', '.join(sorted(names.NODE_PORTS))}"
        ) from error


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise InvalidError(
            f"environment variable {name} is not set: the agent and training code run in a pod of an "
            "ElasticJob, whose controller sets it; `edl run` starts a script as such a job"
        )
    return value


def _number(environ: Mapping[str, str], name: str) -> int:
    value = _required(environ, name)
    if not value.isascii() or not value.isdigit():
        raise InvalidError(f"environment variable {name} is {value!r}: it must be a whole number >= 0")
    return int(value)


def process_environment(
    environment: NodeEnvironment, cluster: TrainingCluster, base: Mapping[str, str]
) -> dict[str, str]:
    """Environment of the node's training process for a cluster version.

    Args:
        environment: the pod's environment.
        cluster: the cluster version.
        base: variables to extend; PET_NPROC_PER_NODE is kept if it is set here.
    """
    variables = {
        names.ENV_CLUSTER_VERSION: str(cluster.version),
        names.ENV_TF_CONFIG: tf_config(environment, cluster),
    }
    rank = cluster.rank_of(environment.node.type, environment.node.id)
    if cluster.collective and rank is not None:
        variables |= _torch_style(environment, cluster, rank) | {
            names.ENV_PET_NPROC_PER_NODE: base.get(names.ENV_PET_NPROC_PER_NODE, "1")
        }
    return {**base, **variables}


def _torch_style(environment: NodeEnvironment, cluster: TrainingCluster, rank: int) -> dict[str, str]:
    """PyTorch's variables: options of ``torchrun``, and variables for a program without a launcher, which has
    one process per node. The master address is the address of rank 0 in this version."""
    address = addresses.resolve(cluster.workers[0].address)
    host, _, port = (environment.listen_address(cluster.version) if rank == 0 else address).rpartition(":")
    size = str(len(cluster.workers))
    return {
        names.ENV_PET_NNODES: size,
        names.ENV_PET_NODE_RANK: str(rank),
        names.ENV_PET_MASTER_ADDR: host,
        names.ENV_PET_MASTER_PORT: port,
        names.ENV_TORCH_MASTER_ADDR: host,
        names.ENV_TORCH_MASTER_PORT: port,
        names.ENV_WORLD_SIZE: size,
        names.ENV_RANK: str(rank),
        names.ENV_LOCAL_RANK: "0",
    }


def task_index(environment: NodeEnvironment, cluster: TrainingCluster) -> int:
    """The node's TensorFlow task index: its rank in the version if it is a member, else its own rank."""
    rank = cluster.rank_of(environment.node.type, environment.node.id)
    return environment.rank if rank is None else rank


def tf_config(environment: NodeEnvironment, cluster: TrainingCluster) -> str:
    """The value of ``TF_CONFIG`` for the process that this node runs for a cluster version, as JSON.

    With parameter servers the cluster is sparse, as TensorFlow allows: it lists the parameter servers by
        rank,
    but only one worker, the process itself, since workers come and go within a cluster version. In a
    collective job all workers are listed by rank. For the process itself the address on which it listens is
    given, for all others the address that this node must dial. An evaluator has no task in the training
    cluster, by TensorFlow's convention.
    """
    index = task_index(environment, cluster)
    if cluster.collective:
        return _collective(environment, cluster, index)
    servers = addresses.resolve_all(member.address for member in cluster.ps)
    tasks: dict[str, dict[str, str]] = {
        names.PS_TYPE: {
            str(member.rank): address for member, address in zip(cluster.ps, servers, strict=True)
        }
    }
    if environment.node.type not in (names.PS_TYPE, names.EVALUATOR_TYPE):
        tasks[environment.node.type] = {str(index): environment.listen_address(cluster.version)}
    return _config(environment, tasks, index)


def _collective(environment: NodeEnvironment, cluster: TrainingCluster, index: int) -> str:
    workers = addresses.resolve_all(member.address for member in cluster.workers)
    if environment.node.type == names.WORKER_TYPE:
        workers[index] = environment.listen_address(cluster.version)
    return _config(environment, {names.WORKER_TYPE: workers}, index)


def _config(environment: NodeEnvironment, tasks: Mapping[str, object], index: int) -> str:
    return json.dumps({"cluster": tasks, "task": {"type": environment.node.type, "index": index}})
