"""A shard manager for tests, and the calls of two workers."""

from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    FailedShard,
    LeaseReply,
    LeaseRequest,
    PartitionOffsets,
    ReleasedShard,
    Shard,
    Splitter,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.services.master.shards import ShardManager, ShardsSnapshot

NOW = 1000.0
A = NodeRef(type="worker", id=0)
B = NodeRef(type="worker", id=1)


def table(size: int = 10, shard_size: int = 3, **params: object) -> DatasetParams:
    return DatasetParams.model_validate({"name": "train", "size": size, "shard_size": shard_size, **params})


def stream(closed: bool, **ends: int) -> DatasetParams:
    partitions = {name: PartitionOffsets(start=100, end=end) for name, end in ends.items()}
    return DatasetParams(
        name="train", splitter=Splitter.STREAMING, partitions=partitions, shard_size=10, closed=closed
    )


def manager_of(*datasets: DatasetParams) -> ShardManager:
    manager = ShardManager()
    for params in datasets:
        manager.register(params)
    return manager


def restarted(manager: ShardManager) -> ShardManager:
    return ShardManager(ShardsSnapshot.model_validate_json(manager.snapshot().to_json()))


def lease(
    manager: ShardManager,
    node: NodeRef = A,
    count: int = 1,
    now: float = NOW,
    holding: list[int] | None = None,
) -> LeaseReply:
    return manager.lease("train", LeaseRequest(node=node, max_shards=count, holding=holding), now)


def done(manager: ShardManager, *shards: Shard, node: NodeRef = A, now: float = NOW) -> AckReply:
    return manager.acknowledge("train", AckRequest(node=node, done=list(shards)), now)


def fail(manager: ShardManager, shard: Shard, node: NodeRef = A) -> AckReply:
    failed = FailedShard.model_validate(shard.model_dump() | {"message": "disk full"})
    return manager.acknowledge("train", AckRequest(node=node, failed=[failed]), NOW)


def release(manager: ShardManager, shard: Shard, records_done: int, node: NodeRef = A) -> AckReply:
    released = ReleasedShard.model_validate(shard.model_dump() | {"records_done": records_done})
    return manager.acknowledge("train", AckRequest(node=node, released=[released]), NOW)


def ranges(reply: LeaseReply) -> list[tuple[int, int]]:
    return [(shard.start, shard.end) for shard in reply.shards]
