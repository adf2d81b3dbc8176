"""One data set: leases, acknowledgements, failures, time-outs, rollback. The package's docstring states the
rules.
"""

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from operator import attrgetter

from edl_workflows.core.exceptions import ConflictError, InvalidError
from edl_workflows.core.protocol.datasets import (
    MAX_SHARDS_PER_MESSAGE,
    DatasetParams,
    DatasetProgress,
    FailedShard,
    HeldShard,
    LeaseState,
    PartitionOffsets,
    ReleasedShard,
    Splitter,
    StreamUpdate,
)
from edl_workflows.services.master.shards.keepers import Keepers
from edl_workflows.services.master.shards.leases import (
    AckResult,
    ExpiredLease,
    Lease,
    LeasedShard,
    Leases,
    ShardName,
)
from edl_workflows.services.master.shards.sequence import ShardSequence
from edl_workflows.services.master.shards.snapshot import (
    DatasetPosition,
    DatasetSnapshot,
    Interval,
    LeaseSnapshot,
    numbers_of,
    to_intervals,
)
from edl_workflows.services.master.shards.sources import EpochSource, ShardSource, StreamSource

MAX_INDICES_PER_REPLY = 1_000_000
"""Records listed in one answer (shuffled text), about 10 MB of JSON."""
MAX_LISTED = 10_000_000
"""Most shards that the position in a checkpoint may list: more than any job leases or re-queues at a time."""
_LEASES_LOST_AT_MOST = 1_000_000
"""More leases than a master grants between two writes of its state, a minute at most. A rollback skips this
many lease numbers, so it also voids leases that a previous master granted but did not store.
"""
_SHARDS_LOST_AT_MOST = 10_000_000
"""More shards than a master leases between two writes of its state."""
_PLACE = attrgetter("epoch", "ordinal")


class ShardedDataset:
    """One data set's shards.

    Args:
        snapshot: the stored state; for a new data set only `params` and an empty position.

    Attributes:
        records_answered: records of answers that this object took. A change of the position does not change
            it.
        keepers: nodes that keep their acknowledgements until these are stored.
    """

    def __init__(self, snapshot: DatasetSnapshot) -> None:
        self._params = snapshot.params
        self._digest = _digest(snapshot.params)
        self._next_lease = self._first_lease = snapshot.next_lease
        self._void_before = snapshot.void_before
        self._reason = snapshot.reason
        self._failures = snapshot.failures
        self._timeouts = snapshot.timeouts
        self.keepers = Keepers(snapshot.keepers)
        self.records_answered = 0
        self._go_to(snapshot.position)
        for stored in snapshot.leases:
            self._restore_lease(stored)

    @classmethod
    def new(cls, params: DatasetParams) -> "ShardedDataset":
        return cls(DatasetSnapshot(params=params, position=DatasetPosition()))

    @property
    def params(self) -> DatasetParams:
        """The registered parameters; those of a stream contain its present offsets."""
        return self._params

    @property
    def state(self) -> LeaseState:
        if self._reason:
            return LeaseState.FAILED
        return LeaseState.END if self._source.finished else LeaseState.OK

    @property
    def reason(self) -> str:
        """Why the data set failed; "" if it did not."""
        return self._reason

    @property
    def epoch(self) -> int:
        """The newest epoch that has been opened; 0 before the first."""
        return self._source.epoch

    def register_again(self, params: DatasetParams) -> None:
        """Accept the registration by another or a restarted worker; a stream's offsets may have grown.

        Raises:
            ConflictError: the parameters differ from those registered before.
        """
        registered, requested = _fixed(self._params), _fixed(params)
        different = ", ".join(sorted(name for name in registered if registered[name] != requested[name]))
        if different:
            raise ConflictError(
                f"data set {params.name!r} is registered with another {different}: "
                "use the same parameters in all workers, or another name"
            )
        if params.splitter is Splitter.STREAMING:
            ends = {name: offsets.end for name, offsets in params.partitions.items()}
            self.grow(StreamUpdate(ends=ends, closed=params.closed))

    def grow(self, update: StreamUpdate) -> None:
        """Record new ends of a stream's partitions. Ends below the known ones are ignored.

        Raises:
            InvalidError: the data set is not a stream, or there is no such partition.
            ConflictError: the stream is closed, and an end is beyond the known one.
        """
        params = self._params
        if not isinstance(self._source, StreamSource):
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

    def lease(
        self, node: str, max_shards: int, now: float, holding: Container[int] | None = None
    ) -> list[LeasedShard]:
        """Lease up to `max_shards` shards; see `LeaseRequest`. If none are returned, `state` tells whether
        to wait.
        """
        if holding is not None:
            self._give_back(lease for lease in self._leases.of(node) if lease.number not in holding)
        if self._reason:
            return []
        lease = Lease(self._next_lease, node, now + self._params.timeout_s)
        taken = self._source.take(min(max_shards, self._max_shards), lease)
        if taken:
            self._next_lease += 1
            self._leases.add(lease)
        shards: list[LeasedShard] = []
        for sequence, ordinals in taken:
            shards += self._shards(sequence, ordinals, lease.number)
        return shards

    def acknowledge(self, node: str, shards: Iterable[ShardName], now: float) -> list[AckResult]:
        """Record a node's answers: shards that are done, which any node may report; shards that failed, which
        are retried unless the data set fails; and shards that are given back unfinished.

        Answers are processed in the order of their epochs, because after a restart of the master the answers
        of one epoch open the next. Repeated answers change nothing.
        """
        deadline = now + self._params.timeout_s
        answers: list[AckResult] = []
        for shard in sorted(shards, key=_PLACE):
            # Not isinstance, which is slow for pydantic's models.
            if type(shard) is FailedShard:
                answers.append(self._acknowledge_failed(node, shard))
            elif type(shard) is ReleasedShard:
                answers.append(self._acknowledge_released(node, shard, deadline))
            else:
                answers.append(self._acknowledge_done(shard, deadline))
        return answers

    def continue_leases(self, node: str, held: Iterable[HeldShard], now: float) -> None:
        """Continue leases that the previous master granted and did not store. Repeatable."""
        for shard in sorted(held, key=_PLACE):
            self._continue_lease(node, shard, shard.start, now + self._params.timeout_s)
        self.keepers.note_report(node, keeps=True)

    def release_node(self, node: str) -> int:
        """Re-queue the shards that a dead or restarted node held. Return their number."""
        self.keepers.remove(node)
        return sum(len(ordinals) for _, ordinals in self._give_back(self._leases.of(node)))

    def expire(self, now: float, listening_since: float, answered: Mapping[str, float]) -> list[ExpiredLease]:
        """Re-queue the shards of expired leases, each with one retry less.

        Args:
            now: Unix seconds.
            listening_since: since when this master can receive acknowledgements.
            answered: when each node last answered for a shard of any data set.
        """
        params = self._params
        self.keepers.expire(now - listening_since)
        leases = self._leases.expired(now) if now >= listening_since + params.timeout_s else []
        expired = [
            ExpiredLease(
                params.name,
                lease.node,
                now - answered.get(lease.node, 0.0) >= params.timeout_s,
                params.task_type,
                params.timeout_s,
            )
            for lease in leases
        ]
        reason = f"no answer came in {params.timeout_s:g} s"
        for sequence, ordinals in self._give_back(leases):
            self._timeouts += len(ordinals)
            for ordinal in ordinals:
                self._count_retry(sequence, ordinal, reason)
        return expired

    def position(self, node: str = "", begun: ReleasedShard | None = None) -> DatasetPosition:
        """Which records are done now; leased records are not done.

        Args:
            node: the node that has begun a shard.
            begun: that shard, and how many of its records are done. It stays leased.
        """
        sequences = [sequence.position() for sequence in self._source.sequences()]
        records = 0
        if begun is not None and (held := self._held(node, begun)) is not None:
            records = min(begun.records_done, self._records_left(held, begun.ordinal) - 1)
            place = self._source.sequences().index(held)
            partial = {**held.partial, begun.ordinal: held.partial.get(begun.ordinal, 0) + records}
            sequences[place] = sequences[place].model_copy(update={"partial": dict(sorted(partial.items()))})
        return DatasetPosition(
            epoch=self._source.epoch,
            digest=self._digest,
            sequences=sequences,
            records_done=self._records_done + records,
            completed_steps=self._completed_steps,
        )

    def rollback(self, position: DatasetPosition) -> None:
        """Return to an earlier position. All leases become void, and later answers to them are stale.

        Raises:
            ValueError: the position belongs to another data set.
        """
        if position.digest not in ("", self._digest):
            raise ValueError("its size, shards or order were others")
        if position.listed > MAX_LISTED:
            raise ValueError(f"it lists more than {MAX_LISTED} shards one by one")
        ShardedDataset(
            DatasetSnapshot(params=self._params, position=position)
        )  # validates all of it before the change
        self._next_lease += _LEASES_LOST_AT_MOST
        self._void_before = self._next_lease
        self._reason = ""
        self._go_to(position)

    def snapshot(self) -> DatasetSnapshot:
        return DatasetSnapshot(
            params=self._params,
            position=self.position(),
            leases=self._stored_leases(),
            next_lease=self._next_lease,
            void_before=self._void_before,
            keepers=self.keepers.nodes,
            reason=self._reason,
            failures=self._failures,
            timeouts=self._timeouts,
        )

    def progress(self) -> DatasetProgress:
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
        self._source: ShardSource = (StreamSource if streaming else EpochSource)(self._params, position)
        self._leases = Leases()
        listed = MAX_INDICES_PER_REPLY // self._params.records_per_shard
        self._max_shards = max(1, listed) if self._source.lists_records else MAX_SHARDS_PER_MESSAGE
        self._records_done = position.records_done
        self._completed_steps = position.completed_steps

    def _restore_lease(self, stored: LeaseSnapshot) -> None:
        lease = Lease(stored.number, stored.node, stored.deadline)
        sequences = {(sequence.epoch, sequence.partition): sequence for sequence in self._source.sequences()}
        for epoch, partition, intervals in stored.shards:
            try:
                sequences[epoch, partition].lease_returned(numbers_of(intervals), lease)
            except KeyError as error:
                where = f"data set {self._params.name!r}, lease {stored.number}, epoch {epoch}"
                raise ValueError(f"{where}: {intervals} are no outstanding shards") from error
        self._leases.add(lease)

    def _stored_leases(self) -> list[LeaseSnapshot]:
        shards: dict[Lease, list[tuple[int, str, list[Interval]]]] = {
            lease: [] for lease in self._leases.all()
        }
        for sequence in self._source.sequences():
            for lease, ordinals in sequence.by_lease().items():
                shards[lease].append((sequence.epoch, sequence.partition, to_intervals(ordinals)))
        return [
            LeaseSnapshot(number=lease.number, node=lease.node, deadline=lease.deadline, shards=held)
            for lease, held in shards.items()
        ]

    def _shards(self, sequence: ShardSequence, ordinals: list[int], lease: int) -> list[LeasedShard]:
        epoch, partition, partial = sequence.epoch, sequence.partition, sequence.partial
        order = sequence.order if self._source.lists_records else None
        bounds, indices = self._source.bounds, None
        shards: list[LeasedShard] = []
        for ordinal in ordinals:
            start, end = bounds(sequence, ordinal)
            if partial:
                start += partial.get(ordinal, 0)
            if order is not None:
                indices = [order[place] for place in range(start, end)]
            shards.append(LeasedShard(epoch, ordinal, lease, partition, start, end, indices))
        return shards

    def _acknowledge_done(self, shard: ShardName, deadline: float) -> AckResult:
        ordinal = shard.ordinal
        if shard.lease < self._void_before:
            return "stale"
        sequence = self._source.find(shard.epoch, shard.partition)
        if sequence is None:
            completed = not shard.partition and shard.epoch <= self._source.epoch
            return "duplicate" if completed else "stale"
        if ordinal >= sequence.count:
            return "stale"
        start, end = self._source.bounds(sequence, ordinal)
        if sequence.partial:
            start += sequence.partial.get(ordinal, 0)
        lease = sequence.leased.get(ordinal)
        if not sequence.settle(ordinal):
            return "duplicate"
        self._count_records(end - start)
        if lease is not None:
            if lease.number == shard.lease:
                lease.deadline = deadline
            if not lease.open:
                self._leases.end(lease)
        if sequence.cursor == sequence.count and sequence.complete:  # the first is cheap and mostly False
            self._source.close(sequence)
        return "accepted"

    def _acknowledge_failed(self, node: str, failed: FailedShard) -> AckResult:
        sequence = self._held(node, failed)
        if sequence is None:
            return "stale"
        self._return(sequence, failed.ordinal)
        self._failures += 1
        self._count_retry(sequence, failed.ordinal, f"{node} says: {failed.message or 'no reason given'}")
        return "accepted"

    def _acknowledge_released(self, node: str, released: ReleasedShard, deadline: float) -> AckResult:
        sequence = self._held(node, released)
        if sequence is None and released.start is not None and released.records_done:
            sequence = self._continue_lease(node, released, released.start, deadline)
        if sequence is None:
            return "stale"
        if released.records_done >= self._records_left(sequence, released.ordinal):
            return self._acknowledge_done(released, deadline)
        if released.records_done:
            done = sequence.partial.get(released.ordinal, 0) + released.records_done
            sequence.partial[released.ordinal] = done
            self._count_records(released.records_done)
        self._return(sequence, released.ordinal)
        return "accepted"

    def _held(self, node: str, shard: ShardName) -> ShardSequence | None:
        """The sequence of `shard` if `node` holds the shard under the lease that `shard` names; else None."""
        sequence = self._source.find(shard.epoch, shard.partition)
        lease = None if sequence is None else sequence.leased.get(shard.ordinal)
        if lease is None or lease.number != shard.lease or lease.node != node:
            return None
        return sequence

    def _continue_lease(
        self, node: str, shard: ShardName, start: int, deadline: float
    ) -> ShardSequence | None:
        """Continue a lease that the previous master did not store; None if that is not possible.

        If the shard begins elsewhere by now, a part of it was counted after this lease, so that what the
        holder says of it must not be counted again.
        """
        number, ordinal = shard.lease, shard.ordinal
        if not self._void_before <= number < self._next_lease + _LEASES_LOST_AT_MOST:
            return None
        sequence = self._source.find(shard.epoch, shard.partition)
        if sequence is None or ordinal >= min(sequence.count, sequence.cursor + _SHARDS_LOST_AT_MOST):
            return None
        lease = self._leases.find(number) or Lease(number, node, deadline)
        first, _ = self._source.bounds(sequence, ordinal)
        earlier = sequence.leased.get(ordinal)
        if lease.node != node or first + sequence.partial.get(ordinal, 0) != start:
            return None
        if earlier is not None and earlier.number >= self._first_lease:
            return None  # granted or continued by this master
        if not sequence.continue_lease(ordinal, lease):
            return None
        if earlier is not None and not earlier.open:
            self._leases.end(earlier)
        self._leases.add(lease)
        self._next_lease = max(self._next_lease, number + 1)
        return sequence

    def _return(self, sequence: ShardSequence, ordinal: int) -> None:
        lease = sequence.leased[ordinal]
        sequence.give_back([ordinal])
        if not lease.open:
            self._leases.end(lease)

    def _give_back(self, leases: Iterable[Lease]) -> list[tuple[ShardSequence, list[int]]]:
        """End leases and re-queue their shards, in order. Return the re-queued shards."""
        ended = set(leases)
        if not ended:
            return []
        returned = []
        for sequence in self._source.sequences():
            ordinals = sorted(ordinal for ordinal, lease in sequence.leased.items() if lease in ended)
            sequence.give_back(ordinals)
            returned.append((sequence, ordinals))
        for lease in ended:
            self._leases.end(lease)
        return returned

    def _records_left(self, sequence: ShardSequence, ordinal: int) -> int:
        start, end = self._source.bounds(sequence, ordinal)
        return end - start - sequence.partial.get(ordinal, 0) if sequence.partial else end - start

    def _count_records(self, records: int) -> None:
        self._records_done += records
        self.records_answered += records
        if self._params.batch_size:
            self._completed_steps += -(-records // self._params.batch_size)

    def _count_retry(self, sequence: ShardSequence, ordinal: int, reason: str) -> None:
        tries = sequence.retries.get(ordinal, 0) + 1
        sequence.retries[ordinal] = tries
        if tries > self._params.max_retries and not self._reason:
            start, end = self._source.bounds(sequence, ordinal)
            where = f"partition {sequence.partition}" if sequence.partition else f"epoch {sequence.epoch}"
            self._reason = (
                f"shard {ordinal} of {where} (records {start} to {end - 1}) of data set "
                f"{self._params.name!r} came back {tries} times, more than "
                f"max_retries={self._params.max_retries}; the last time, {reason}"
            )


def _digest(params: DatasetParams) -> str:
    """Digest of the parameters that determine a shard's records. A position can be used only with a data set
    of the same digest.

    The number of epochs is left out, because it does not change the records of an epoch.
    """
    parameters = [params.splitter, params.size, params.records_per_shard, params.shuffle, params.seed]
    starts = sorted((name, offsets.start) for name, offsets in params.partitions.items())
    return hashlib.sha256(json.dumps([*parameters, starts]).encode()).hexdigest()[:16]


def _fixed(params: DatasetParams) -> dict[str, object]:
    """The parameters that must be equal in all registrations: all except the growing ends of a stream."""
    fixed = params.model_dump(exclude={"partitions", "closed"})
    fixed["partitions"] = {name: offsets.start for name, offsets in params.partitions.items()}
    return fixed
