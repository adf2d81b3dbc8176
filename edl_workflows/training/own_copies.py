"""Whether a worker that trains from the job's data has a copy of the model of its own, which nothing combines
with those of the other workers.

A wrong "yes" would be a false alarm, a wrong "no" is only a missing one: in doubt the answer is no.
"""

import sys
from typing import Any

from edl_workflows.core.protocol.cluster import TrainingCluster

_MAY_COMBINE = (
    "bagua",
    "byteps",
    "hivemind",
    "horovod",
    "jax",
    "mindspore",
    "mpi4py",
    "mxnet",
    "oneflow",
    "paddle",
    "ray",
    "tensorflow",
    "torchft",
)
"""Libraries that may combine what the workers learn, without a sign of it that is cheap to see."""


def trains_own_copy(cluster: TrainingCluster) -> bool:
    """Whether nothing in this process can combine its model with those of other workers.

    Parameter servers hold one model for all. A collective job's program finds its group in the environment,
    and may form it by any means, except that with PyTorch it is PyTorch's. In another job a program has no
    group, unless a library brings one.

    Args:
        cluster: the cluster version of this process, which has no adapter.
    """
    if cluster.ps or any(sys.modules.get(name) is not None for name in _MAY_COMBINE):
        return False
    torch: Any = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return False
    return not cluster.collective or (torch is not None and len(cluster.workers) > 1)
