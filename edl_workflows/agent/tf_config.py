"""``TF_CONFIG`` of a training process: what TensorFlow calls the cluster, and which task the process is.

Sparse, as TensorFlow allows: parameter servers in rank order, and beside them only the process's own task, since
workers come and go within a cluster version.
"""

import json

from edl_workflows.agent.environment import NodeEnvironment
from edl_workflows.jobs import names
from edl_workflows.protocol import addresses
from edl_workflows.protocol.cluster import Cluster


def task_index(environment: NodeEnvironment, cluster: Cluster) -> int:
    """The node's TensorFlow task index: its rank in the version for a parameter server, else its own rank."""
    if environment.node.type == names.PS_TYPE:
        return next(member.rank for member in cluster.ps if member.id == environment.node.id)
    return environment.rank


def tf_config(environment: NodeEnvironment, cluster: Cluster) -> str:
    """The value of ``TF_CONFIG`` for the node's process of a cluster version, as JSON.

    Addresses are those to dial from here; an evaluator has no task in the training cluster, as in TensorFlow's own
    convention.
    """
    index = task_index(environment, cluster)
    tasks: dict[str, dict[str, str]] = {
        names.PS_TYPE: {str(member.rank): addresses.resolve(member.address) for member in cluster.ps}
    }
    if environment.node.type not in (names.PS_TYPE, names.EVALUATOR_TYPE):
        tasks[environment.node.type] = {str(index): environment.listen_address(cluster.version)}
    return json.dumps({"cluster": tasks, "task": {"type": environment.node.type, "index": index}})
