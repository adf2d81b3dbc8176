"""Streaming: shards of partitions whose ends grow, handed out in turn.

A shard is the n-th ``shard_size`` offsets of its partition, so its range never depends on when it was handed out. Only
whole shards are handed out while the stream is open; the short tails follow when it is closed (upstream never emits them).
"""

from edl_workflows.master.shards.leases import Lease
from edl_workflows.master.shards.sequence import ShardSequence
from edl_workflows.master.shards.snapshot import DatasetPosition, SequencePosition
from edl_workflows.protocol.datasets import DatasetParams


class StreamSource:
    """The partitions of a streaming data set, each a sequence.

    Args:
        params: of a streaming data set, with the offsets that are known now.
        position: where to begin.
    """

    def __init__(self, params: DatasetParams, position: DatasetPosition) -> None:
        self._params = params
        self.lists_records = False
        self._shard_size = params.records_per_shard
        stored = {sequence.partition: sequence for sequence in position.sequences}
        self._sequences = {
            name: ShardSequence(
                self._count(name), stored.get(name, SequencePosition(partition=name, cursor=0))
            )
            for name in params.partitions
        }
        self._turn = 0

    @property
    def epoch(self) -> int:
        """See `ShardSource`. A stream has one, begun with its first shard."""
        return int(any(sequence.cursor for sequence in self._sequences.values()))

    @property
    def total(self) -> int | None:
        """See `ShardSource`."""
        if not self._params.closed:
            return None
        return sum(offsets.end - offsets.start for offsets in self._params.partitions.values())

    @property
    def finished(self) -> bool:
        """See `ShardSource`."""
        return self._params.closed and all(sequence.complete for sequence in self._sequences.values())

    def sequences(self) -> list[ShardSequence]:
        """See `ShardSource`."""
        return list(self._sequences.values())

    def take(self, limit: int, lease: Lease) -> list[tuple[ShardSequence, list[int]]]:
        """See `ShardSource`. One shard of each partition in turn."""
        taken: list[tuple[ShardSequence, list[int]]] = []
        waiting = list(self._sequences.values())
        waiting = waiting[self._turn :] + waiting[: self._turn]
        while waiting and len(taken) < limit:
            still: list[ShardSequence] = []
            for sequence in waiting:
                if len(taken) < limit and (ordinals := sequence.take(1, lease)):
                    taken.append((sequence, ordinals))
                    still.append(sequence)
            waiting = still
        self._turn = (self._turn + len(taken)) % len(self._sequences)
        return taken

    def find(self, epoch: int, partition: str) -> ShardSequence | None:
        """See `ShardSource`."""
        return self._sequences.get(partition) if epoch == 1 else None

    def close(self, sequence: ShardSequence) -> None:
        """See `ShardSource`. A partition may still grow; it stays."""

    def bounds(self, sequence: ShardSequence, ordinal: int) -> tuple[int, int]:
        """See `ShardSource`."""
        offsets = self._params.partitions[sequence.partition]
        start = offsets.start + ordinal * self._shard_size
        return start, min(start + self._shard_size, offsets.end)

    def grow(self, params: DatasetParams) -> None:
        """Takes further ends, or that the stream is closed."""
        self._params = params
        for name, sequence in self._sequences.items():
            sequence.count = self._count(name)

    def _count(self, partition: str) -> int:
        offsets = self._params.partitions[partition]
        whole, tail = divmod(offsets.end - offsets.start, self._shard_size)
        return whole + (1 if tail and self._params.closed else 0)
