"""What the environment of a training process says about its place in the cluster version it belongs to."""

from collections.abc import Mapping

from edl_workflows.agent.environment import NodeEnvironment
from edl_workflows.agent.tf_config import tf_config
from edl_workflows.jobs import names
from edl_workflows.protocol import addresses
from edl_workflows.protocol.cluster import Cluster


def process_environment(
    environment: NodeEnvironment, cluster: Cluster, base: Mapping[str, str]
) -> dict[str, str]:
    """The variables of the node's process of a cluster version.

    Args:
        environment: of the pod.
        cluster: the version.
        base: to which they are added; its PET_NPROC_PER_NODE stays.
    """
    said = {
        names.ENV_CLUSTER_VERSION: str(cluster.version),
        names.ENV_TF_CONFIG: tf_config(environment, cluster),
    }
    rank = cluster.rank_of(environment.node.type, environment.node.id)
    if cluster.collective and rank is not None:
        said |= _torch_style(environment, cluster, rank) | {
            names.ENV_PET_NPROC_PER_NODE: base.get(names.ENV_PET_NPROC_PER_NODE, "1")
        }
    return {**base, **said}


def _torch_style(environment: NodeEnvironment, cluster: Cluster, rank: int) -> dict[str, str]:
    """As launchers in PyTorch's style read it: ``torchrun`` its own options, and a program without a launcher, one process a
    node, the rest. The master's address is that of rank 0 in this version."""
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
