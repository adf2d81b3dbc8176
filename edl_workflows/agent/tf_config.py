"""``TF_CONFIG`` of a training process: what TensorFlow calls the cluster, and which task the process is.

Sparse, as TensorFlow allows: parameter servers in rank order, and beside them only the process's own task, since
workers come and go within a cluster version. In a collective job they do not: there all workers stand in it, by rank.
"""

import json
from collections.abc import Mapping

from edl_workflows.agent.environment import NodeEnvironment
from edl_workflows.jobs import names
from edl_workflows.protocol import addresses
from edl_workflows.protocol.cluster import Cluster


def task_index(environment: NodeEnvironment, cluster: Cluster) -> int:
    """The node's TensorFlow task index: its rank in the version for a member of it, else its own rank."""
    rank = cluster.rank_of(environment.node.type, environment.node.id)
    return environment.rank if rank is None else rank


def tf_config(environment: NodeEnvironment, cluster: Cluster) -> str:
    """The value of ``TF_CONFIG`` for the node's process of a cluster version, as JSON.

    Addresses are those to dial from here; an evaluator has no task in the training cluster, as in TensorFlow's own
    convention.
    """
    index = task_index(environment, cluster)
    if cluster.collective:
        return _collective(environment, cluster, index)
    tasks: dict[str, dict[str, str]] = {
        names.PS_TYPE: {str(member.rank): addresses.resolve(member.address) for member in cluster.ps}
    }
    if environment.node.type not in (names.PS_TYPE, names.EVALUATOR_TYPE):
        tasks[environment.node.type] = {str(index): environment.listen_address(cluster.version)}
    return _config(environment, tasks, index)


def _collective(environment: NodeEnvironment, cluster: Cluster, index: int) -> str:
    workers = [addresses.resolve(member.address) for member in cluster.workers]
    if environment.node.type == names.WORKER_TYPE:
        workers[index] = environment.listen_address(cluster.version)
    return _config(environment, {names.WORKER_TYPE: workers}, index)


def _config(environment: NodeEnvironment, tasks: Mapping[str, object], index: int) -> str:
    return json.dumps({"cluster": tasks, "task": {"type": environment.node.type, "index": index}})
