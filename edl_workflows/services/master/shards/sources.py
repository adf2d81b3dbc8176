"""Which shards a data set has: epochs of a table or text, or partitions of a stream whose ends grow."""

from typing import Protocol

from edl_workflows.core.protocol.datasets import DatasetParams, Splitter
from edl_workflows.core.protocol.permutation import Permutation
from edl_workflows.services.master.shards.leases import Lease
from edl_workflows.services.master.shards.sequence import ShardSequence
from edl_workflows.services.master.shards.snapshot import DatasetPosition, SequencePosition

MAX_OPEN_EPOCHS = 2


class ShardSource(Protocol):
    """Which shards a data set has: `EpochSource` or `StreamSource`."""

    @property
    def lists_records(self) -> bool:
        """Whether a shard's `[start, end)` are places in its sequence's order, so that its records must be
        listed one by one.
        """

    @property
    def epoch(self) -> int:
        """The newest epoch that has been opened, counted from 1; 0 before the first."""

    @property
    def total(self) -> int | None:
        """Records of all epochs; None while unknown."""

    @property
    def finished(self) -> bool:
        """Whether all shards are done and none will be added."""

    def sequences(self) -> list[ShardSequence]:
        """The open sequences, in order."""

    def take(self, limit: int, lease: Lease) -> list[tuple[ShardSequence, list[int]]]:
        """Lease up to `limit` next shards."""

    def find(self, epoch: int, partition: str) -> ShardSequence | None:
        """The open sequence of an epoch or partition, or None. Opens the next epoch if that is asked for and
        allowed.
        """

    def close(self, sequence: ShardSequence) -> None:
        """Called when a sequence has become complete."""

    def bounds(self, sequence: ShardSequence, ordinal: int) -> tuple[int, int]:
        """The first record of a shard, and the record after its last."""


class EpochSource:
    """The epochs of a table or text data set. Shards of the oldest unfinished epoch are leased first.

    Args:
        params: parameters of the data set.
        position: where to begin.
    """

    def __init__(self, params: DatasetParams, position: DatasetPosition) -> None:
        self._params = params
        self._shard_size = params.records_per_shard
        self._size = params.size
        self._count = -(-params.size // self._shard_size)
        self.lists_records = params.shuffle and params.splitter is Splitter.TEXT
        self._last = params.num_epochs if params.num_epochs > 0 else None
        # A job that is submitted again may want fewer epochs than the previous one had begun.
        last = self._last if self._last is not None else position.epoch
        self._epoch = min(position.epoch, last)
        self._open = {s.epoch: self._sequence(s) for s in position.sequences if s.epoch <= last}

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def total(self) -> int | None:
        return None if self._last is None else self._size * self._last

    @property
    def finished(self) -> bool:
        return not self._open and self._epoch == self._last

    def sequences(self) -> list[ShardSequence]:
        return list(self._open.values())

    def take(self, limit: int, lease: Lease) -> list[tuple[ShardSequence, list[int]]]:
        taken: list[tuple[ShardSequence, list[int]]] = []
        for sequence in self._open.values():
            ordinals = sequence.take(limit, lease)
            if ordinals:
                taken.append((sequence, ordinals))
                limit -= len(ordinals)
                if not limit:
                    return taken
        while limit and (opened := self._open_next()):
            ordinals = opened.take(limit, lease)
            taken.append((opened, ordinals))
            limit -= len(ordinals)
        return taken

    def find(self, epoch: int, partition: str) -> ShardSequence | None:
        if partition:
            return None
        if epoch == self._epoch + 1:
            return self._open_next()
        return self._open.get(epoch)

    def close(self, sequence: ShardSequence) -> None:
        del self._open[sequence.epoch]

    def bounds(self, sequence: ShardSequence, ordinal: int) -> tuple[int, int]:
        if sequence.order is not None and not self.lists_records:
            ordinal = sequence.order[ordinal]
        start = ordinal * self._shard_size
        end = start + self._shard_size
        return start, end if end < self._size else self._size  # noqa: FURB136 - min takes four times as long

    def _open_next(self) -> ShardSequence | None:
        if self._epoch == self._last or len(self._open) >= MAX_OPEN_EPOCHS:
            return None
        self._epoch += 1
        opened = self._sequence(SequencePosition(epoch=self._epoch, cursor=0))
        self._open[self._epoch] = opened
        return opened

    def _sequence(self, position: SequencePosition) -> ShardSequence:
        order = None
        if self._params.shuffle:
            items = self._size if self.lists_records else self._count
            order = Permutation(items, f"{self._params.seed}/{position.epoch}")
        return ShardSequence(self._count, position, order)


class StreamSource:
    """The partitions of a streaming data set, each a sequence. Shards are leased from each partition in turn.

    Shard n has the n-th `shard_size` offsets of its partition, so its range does not depend on when it is
    leased. While the stream is open, only full shards are leased; the shorter last shard of each partition
    follows when the stream is closed (DLRover never emits it).

    Args:
        params: parameters of a streaming data set, with the offsets known now.
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
        """A stream has one epoch, which begins with its first shard."""
        return int(any(sequence.cursor for sequence in self._sequences.values()))

    @property
    def total(self) -> int | None:
        if not self._params.closed:
            return None
        return sum(offsets.end - offsets.start for offsets in self._params.partitions.values())

    @property
    def finished(self) -> bool:
        return self._params.closed and all(sequence.complete for sequence in self._sequences.values())

    def sequences(self) -> list[ShardSequence]:
        return list(self._sequences.values())

    def take(self, limit: int, lease: Lease) -> list[tuple[ShardSequence, list[int]]]:
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
        return self._sequences.get(partition) if epoch == 1 else None

    def close(self, sequence: ShardSequence) -> None:
        """Do nothing: the partition may still grow."""

    def bounds(self, sequence: ShardSequence, ordinal: int) -> tuple[int, int]:
        offsets = self._params.partitions[sequence.partition]
        start = offsets.start + ordinal * self._shard_size
        return start, min(start + self._shard_size, offsets.end)

    def grow(self, params: DatasetParams) -> None:
        """Adopt new parameters, with greater ends or with the stream closed."""
        self._params = params
        for name, sequence in self._sequences.items():
            sequence.count = self._count(name)

    def _count(self, partition: str) -> int:
        offsets = self._params.partitions[partition]
        whole, tail = divmod(offsets.end - offsets.start, self._shard_size)
        return whole + (1 if tail and self._params.closed else 0)
