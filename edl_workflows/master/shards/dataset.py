"""One data set: leases, acknowledgements, failures, time-outs, rollback. The rules are in the package's docstring."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from edl_workflows.exceptions import ConflictError, InvalidError
from edl_workflows.master.shards.epochs import Epochs, ShardSource
from edl_workflows.master.shards.leases import Lease, Leases
from edl_workflows.master.shards.sequence import Sequence
from edl_workflows.master.shards.snapshot import DatasetPosition, DatasetSnapshot, LeaseSnapshot, numbers_of
from edl_workflows.master.shards.stream import Stream
from edl_workflows.protocol.datasets import (
    MAX_SHARDS_PER_MESSAGE,
    AckReply,
    AckRequest,
    DatasetParams,
    DatasetProgress,
    FailedShard,
    LeaseReply,
    LeaseState,
    PartitionOffsets,
    ReleasedShard,
    Shard,
    ShardKey,
    Splitter,
    StreamUpdate,
)

MAX_INDICES_PER_REPLY = 1_000_000
"""Records listed in one answer (shuffled text), some 10 MB of JSON."""
_LEASES_LOST_AT_MOST = 1_000_000
"""More leases than a master gives out between two writes of its state: a rollback skips so many numbers, and so voids
also those that a restored master doesn't know it gave."""


class _Outcome(Enum):
    """What an answer to a lease came to; see `AckReply`."""

    ACCEPTED = 1
    DUPLICATE = 2
    STALE = 3


@dataclass(frozen=True)
class ExpiredLease:
    """A lease that timed out; its shards are in the queue again."""

    dataset: str
    node: str
    lease: int
    shards: int


class Dataset:
    """One data set's shards.

    Args:
        snapshot: what to begin with; of a new data set only ``params`` and an empty position.
    """

    def __init__(self, snapshot: DatasetSnapshot) -> None:
        self._params = snapshot.params
        self._next_lease = snapshot.next_lease
        self._void_before = snapshot.void_before
        self._reason = snapshot.reason
        self._failures = snapshot.failures
        self._timeouts = snapshot.timeouts
        self._go_to(snapshot.position)
        for stored in snapshot.leases:
            self._restore_lease(stored)

    @classmethod
    def new(cls, params: DatasetParams) -> "Dataset":
        """A data set of which nothing is done."""
        return cls(DatasetSnapshot(params=params, position=DatasetPosition()))

    @property
    def params(self) -> DatasetParams:
        """As registered; a stream's with its present offsets."""
        return self._params

    @property
    def state(self) -> LeaseState:
        """OK, END or FAILED."""
        if self._reason:
            return LeaseState.FAILED
        return LeaseState.END if self._source.finished else LeaseState.OK

    @property
    def reason(self) -> str:
        """Why it failed; empty while it has not."""
        return self._reason

    def register_again(self, params: DatasetParams) -> None:
        """A further worker, or a restarted one, registers the data set; a stream's offsets may have grown.

        Raises:
            ConflictError: the parameters differ from those registered before.
        """
        known, said = _fixed(self._params), _fixed(params)
        different = ", ".join(sorted(name for name in known if known[name] != said[name]))
        if different:
            raise ConflictError(
                f"data set {params.name!r} is registered with another {different}: "
                "use the same parameters in all workers, or another name"
            )
        if params.splitter is Splitter.STREAMING:
            ends = {name: offsets.end for name, offsets in params.partitions.items()}
            self.grow(StreamUpdate(ends=ends, closed=params.closed))

    def grow(self, update: StreamUpdate) -> None:
        """Takes further offsets of a stream. Ends that are behind the known ones change nothing.

        Raises:
            InvalidError: not a stream, or no such partition.
            ConflictError: the stream is closed, and an end lies beyond its own.
        """
        params = self._params
        if not isinstance(self._source, Stream):
            raise InvalidError(
                f"data set {params.name!r} is of kind {params.splitter}: only streams have offsets"
            )
        grown = dict(params.partitions)
        for name, end in update.ends.items():
            if name not in grown:
                raise InvalidError(
                    f"data set {params.name!r} has no partition {name!r}: name it when registering"
                )
            if end > grown[name].end:
                grown[name] = PartitionOffsets(start=grown[name].start, end=end)
        if params.closed and grown != params.partitions:
            raise ConflictError(f"stream {params.name!r} is closed: its offsets can't grow any more")
        closed = params.closed or update.closed
        self._params = params.model_copy(update={"partitions": grown, "closed": closed})
        self._source.grow(self._params)

    def lease(self, node: str, max_shards: int, now: float, holding: list[int] | None = None) -> LeaseReply:
        """Hands out up to ``max_shards`` shards; see `LeaseRequest`."""
        if holding is not None:
            self._give_back(lease for lease in self._leases.of(node) if lease.number not in holding)
        if self._reason:
            return LeaseReply(state=LeaseState.FAILED, reason=self._reason)
        taken = self._source.take(min(max_shards, self._max_shards()))
        if not taken:
            return LeaseReply(state=LeaseState.END if self._source.finished else LeaseState.WAIT)
        number = self._next_lease
        self._next_lease = number + 1
        self._leases.add(Lease(number, node, now + self._params.timeout_s, set(taken)))
        return LeaseReply(state=LeaseState.OK, shards=[self._shard(*shard, number) for shard in taken])

    def acknowledge(self, node: str, request: AckRequest, now: float) -> AckReply:
        """Takes answers to leases; see `AckRequest`."""
        outcomes = [self._take_done(key, now) for key in request.done]
        outcomes += [self._take_failed(node, failed) for failed in request.failed]
        outcomes += [self._take_released(node, released, now) for released in request.released]
        return AckReply(
            accepted=outcomes.count(_Outcome.ACCEPTED),
            duplicates=outcomes.count(_Outcome.DUPLICATE),
            stale=outcomes.count(_Outcome.STALE),
            state=self.state,
            reason=self._reason,
        )

    def release_node(self, node: str) -> int:
        """The node died or restarted: what it held returns to the queue. How many shards."""
        return self._give_back(self._leases.of(node))

    def expire(self, now: float) -> list[ExpiredLease]:
        """Returns the shards of leases whose deadline has passed; each has then one retry less."""
        expired = []
        for lease in self._leases.expired(now):
            shards = self._leases.give_back(lease)
            expired.append(ExpiredLease(self._params.name, lease.node, lease.number, len(shards)))
            self._timeouts += len(shards)
            for sequence, ordinal in shards:
                self._count_retry(
                    sequence, ordinal, f"{lease.node} did not answer in {self._params.timeout_s:g} s"
                )
        return expired

    def position(self) -> DatasetPosition:
        """Which records are done now; leased ones are not."""
        return DatasetPosition(
            epoch=self._source.epoch,
            sequences=[sequence.position() for sequence in self._source.sequences()],
            records_done=self._records_done,
            completed_steps=self._completed_steps,
        )

    def rollback(self, position: DatasetPosition) -> None:
        """Goes back to an earlier position: all leases are void, and so are answers to them that are still to come."""
        self._next_lease += _LEASES_LOST_AT_MOST
        self._void_before = self._next_lease
        self._reason = ""
        self._go_to(position)

    def snapshot(self) -> DatasetSnapshot:
        """All there is to store."""
        return DatasetSnapshot(
            params=self._params,
            position=self.position(),
            leases=self._leases.snapshot(),
            next_lease=self._next_lease,
            void_before=self._void_before,
            reason=self._reason,
            failures=self._failures,
            timeouts=self._timeouts,
        )

    def progress(self) -> DatasetProgress:
        """How far it is."""
        sequences = self._source.sequences()
        return DatasetProgress(
            name=self._params.name,
            task_type=self._params.task_type,
            state=self.state,
            reason=self._reason,
            epoch=self._source.epoch,
            num_epochs=self._params.num_epochs,
            records_done=self._records_done,
            records_total=self._source.total,
            completed_steps=self._completed_steps if self._params.batch_size else None,
            shards_leased=sum(len(sequence.leased) for sequence in sequences),
            shards_returned=sum(len(sequence.returned) for sequence in sequences),
            failures=self._failures,
            timeouts=self._timeouts,
        )

    def _go_to(self, position: DatasetPosition) -> None:
        streaming = self._params.splitter is Splitter.STREAMING
        self._source: ShardSource = (Stream if streaming else Epochs)(self._params, position)
        self._leases = Leases()
        self._records_done = position.records_done
        self._completed_steps = position.completed_steps

    def _restore_lease(self, stored: LeaseSnapshot) -> None:
        lease = Lease(stored.number, stored.node, stored.deadline)
        sequences = {(sequence.epoch, sequence.partition): sequence for sequence in self._source.sequences()}
        for epoch, partition, intervals in stored.shards:
            sequence = sequences[epoch, partition]
            for ordinal in numbers_of(intervals):
                del sequence.returned[ordinal]
                lease.shards.add((sequence, ordinal))
        self._leases.add(lease)

    def _max_shards(self) -> int:
        if self._source.lists_records:
            return max(1, MAX_INDICES_PER_REPLY // self._params.records_per_shard)
        return MAX_SHARDS_PER_MESSAGE

    def _shard(self, sequence: Sequence, ordinal: int, lease: int) -> Shard:
        start, end = self._source.bounds(sequence, ordinal)
        start += sequence.partial.get(ordinal, 0)
        indices = None
        if self._source.lists_records and sequence.order is not None:
            indices = [sequence.order[place] for place in range(start, end)]
        return Shard(
            epoch=sequence.epoch,
            ordinal=ordinal,
            lease=lease,
            partition=sequence.partition,
            start=start,
            end=end,
            indices=indices,
        )

    def _take_done(self, key: ShardKey, now: float) -> _Outcome:
        if key.lease < self._void_before:
            return _Outcome.STALE
        sequence = self._source.find(key.epoch, key.partition)
        if sequence is None:
            completed = not key.partition and key.epoch <= self._source.epoch
            return _Outcome.DUPLICATE if completed else _Outcome.STALE
        if key.ordinal >= sequence.count:
            return _Outcome.STALE
        lease = self._leases.holder_of(sequence, key.ordinal)
        records = self._records_left(sequence, key.ordinal)
        if not sequence.settle(key.ordinal):
            return _Outcome.DUPLICATE
        if lease is not None:
            self._leases.remove(lease, sequence, key.ordinal)
            if lease.number == key.lease:
                lease.deadline = now + self._params.timeout_s
        self._count_records(records)
        if sequence.complete:
            self._source.close(sequence)
        return _Outcome.ACCEPTED

    def _take_failed(self, node: str, failed: FailedShard) -> _Outcome:
        held = self._held(node, failed)
        if held is None:
            return _Outcome.STALE
        self._return(*held, failed.ordinal)
        self._failures += 1
        self._count_retry(held[1], failed.ordinal, f"{node} says: {failed.message or 'no reason given'}")
        return _Outcome.ACCEPTED

    def _take_released(self, node: str, released: ReleasedShard, now: float) -> _Outcome:
        held = self._held(node, released)
        if held is None:
            return _Outcome.STALE
        lease, sequence = held
        if released.records_done >= self._records_left(sequence, released.ordinal):
            return self._take_done(released, now)
        if released.records_done:
            done = sequence.partial.get(released.ordinal, 0) + released.records_done
            sequence.partial[released.ordinal] = done
            self._count_records(released.records_done)
        self._return(lease, sequence, released.ordinal)
        return _Outcome.ACCEPTED

    def _held(self, node: str, key: ShardKey) -> tuple[Lease, Sequence] | None:
        """The lease and sequence of a shard if that node holds it under that lease."""
        sequence = self._source.find(key.epoch, key.partition)
        lease = None if sequence is None else self._leases.holder_of(sequence, key.ordinal)
        if sequence is None or lease is None or lease.number != key.lease or lease.node != node:
            return None
        return lease, sequence

    def _return(self, lease: Lease, sequence: Sequence, ordinal: int) -> None:
        self._leases.remove(lease, sequence, ordinal)
        sequence.give_back(ordinal)

    def _give_back(self, leases: Iterable[Lease]) -> int:
        return sum(len(self._leases.give_back(lease)) for lease in leases)

    def _records_left(self, sequence: Sequence, ordinal: int) -> int:
        start, end = self._source.bounds(sequence, ordinal)
        return end - start - sequence.partial.get(ordinal, 0)

    def _count_records(self, records: int) -> None:
        self._records_done += records
        if self._params.batch_size:
            self._completed_steps += -(-records // self._params.batch_size)

    def _count_retry(self, sequence: Sequence, ordinal: int, why: str) -> None:
        tries = sequence.retries.get(ordinal, 0) + 1
        sequence.retries[ordinal] = tries
        if tries > self._params.max_retries and not self._reason:
            start, end = self._source.bounds(sequence, ordinal)
            where = f"partition {sequence.partition}" if sequence.partition else f"epoch {sequence.epoch}"
            self._reason = (
                f"shard {ordinal} of {where} (records {start} to {end - 1}) of data set {self._params.name!r} came back "
                f"{tries} times, more than max_retries={self._params.max_retries}; the last time, {why}"
            )


def _fixed(params: DatasetParams) -> dict[str, object]:
    """What may not differ between registrations: all but a stream's growing ends."""
    fixed = params.model_dump(exclude={"partitions", "closed"})
    fixed["partitions"] = {name: offsets.start for name, offsets in params.partitions.items()}
    return fixed
