"""What the how-to page on PyTorch says of models that are sharded within replica
groups, trained by `tests.e2e.torch_survivor`."""

from collections.abc import Iterable

import torch
from torch.distributed.fsdp import fully_shard

from edl_workflows.training import Job
from edl_workflows.training.frameworks.torch_replica import ReplicaGroup, join_replica_group


def shard(
    job: Job, model: torch.nn.Module, blocks: Iterable[torch.nn.Module], device: str
) -> ReplicaGroup:
    """Shard a model over the processes of this one's replica group."""
    replica = join_replica_group(job, device)
    for block in blocks:
        fully_shard(block, mesh=replica.mesh)
    fully_shard(model, mesh=replica.mesh)

    return replica
