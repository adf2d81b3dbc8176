"""Shards of a data set for one training process, leased and acknowledged by background threads.

Delivery is at least once: a shard is acknowledged only when the loop asks for the next one. When the process
stops, it returns the shards that it holds; a partly processed shard is returned with the number of records
that have been processed.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from edl_workflows.core.exceptions import EdlError, InvalidError, JobFailedError, UnavailableError
from edl_workflows.core.protocol.datasets import (
    MAX_SHARDS_PER_MESSAGE,
    AckRequest,
    DatasetParams,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    ReleasedShard,
    Shard,
    ShardKey,
    TaskType,
)
from edl_workflows.core.protocol.message import describe_problems
from edl_workflows.core.protocol.training import ConsumedShards
from edl_workflows.training.client import MasterClient, Retries

ACK_SECONDS = 0.2
"""Time during which acknowledgements are collected into one message. This costs little, since the master's
grouped writes take longer."""
BOUNDARY_SECONDS = 0.05
"""Interval at which a loop that waits for shards checks the directive."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """The records of one step.

    Attributes:
        indices: indices of the records in the data set, or offsets in the partition.
        epoch: the epoch, counted from 1.
        partition: the partition of a streaming data set.
    """

    indices: Sequence[int]
    epoch: int
    partition: str = ""


def dataset_params(fields: Mapping[str, Any]) -> DatasetParams:
    """Parse the parameters that the training code gives for a data set.

    Raises:
        InvalidError: lists the wrong fields.
    """
    try:
        return DatasetParams.model_validate(fields)
    except ValidationError as error:
        raise InvalidError(f"data set {fields['name']!r}: {'; '.join(describe_problems(error))}") from error


@dataclass
class _Held:
    """The shards that the process holds, guarded by the reader's lock.

    Attributes:
        ahead: shards that are leased but not begun.
        current: the shard being processed.
        records_done: number of processed records of the current shard.
        done, released: processed and returned shards that must still be acknowledged.
        sending: shards whose acknowledgement is being sent.
    """

    ahead: deque[Shard] = field(default_factory=deque)
    current: Shard | None = None
    records_done: int = 0
    done: list[ShardKey] = field(default_factory=list)
    released: list[ReleasedShard] = field(default_factory=list)
    sending: list[ShardKey] = field(default_factory=list)

    def leases(self) -> list[int]:
        """Numbers of the leases of all held shards."""
        current = [self.current] if self.current else []
        keys: list[ShardKey] = [*self.ahead, *current, *self.done, *self.released, *self.sending]
        return sorted({key.lease for key in keys})


class ShardReader:
    """The shards of one data set, for one consumer at a time.

    Args:
        client: connection to the master.
        ask: the node, its cluster version, and how many shards to hold in addition to the one being processed
            (``max_shards``). If the worker is killed, other workers process again the held shards, the
            current shard and all shards that were not acknowledged.
        params: parameters of the data set.
        may_lease: whether the process may lease shards now.
        between: called between two batches or shards, and regularly while there is nothing to process; may
            call `settle`.
    """

    def __init__(
        self,
        client: MasterClient,
        ask: LeaseRequest,
        params: DatasetParams,
        may_lease: Callable[[], bool],
        between: Callable[[], None],
    ) -> None:
        self._client = client
        self._ask = ask
        self._params = params
        self._may_lease = may_lease
        self._between = between
        self._held = _Held()
        self._lock = threading.Condition()
        self._state = LeaseState.OK
        self._error: EdlError | None = None
        self._paused = False
        self._leasing = False
        self._stop = threading.Event()
        for work in (self._lease_ahead, self._acknowledge):
            threading.Thread(
                target=work, name=f"{work.__name__.strip('_')}-{params.name}", daemon=True
            ).start()

    def shards(self) -> Iterator[Shard]:
        """Shards until the data set is consumed by all workers together.

        Raises:
            JobFailedError: a shard failed too often.
            UnavailableError: the reader was closed before the data was consumed.
            EdlError: the master rejected a request.
        """
        while (shard := self._next()) is not None:
            yield shard
            self._finish(shard)
            self._between()

    def batches(self) -> Iterator[Batch]:
        """Like `shards`, cut into batches of the data set's batch size; without one, each shard is a
        batch."""
        while (shard := self._next()) is not None:
            size = self._params.batch_size or shard.end - shard.start
            records: Sequence[int] = (
                shard.indices if shard.indices is not None else range(shard.start, shard.end)
            )
            for first in range(0, len(records), size):
                indices = records[first : first + size]
                yield Batch(indices=indices, epoch=shard.epoch, partition=shard.partition)
                if first + size < len(records):
                    self._held.records_done = first + len(indices)
                    self._between()
                    if self._held.current is not shard:  # returned meanwhile
                        break
                else:
                    self._finish(shard)
                    self._between()

    def settle(self, timeout: float | None = None) -> bool:
        """Return the held shards, and wait until the master has stored all acknowledgements.

        Nothing is leased until `resume` is called.

        Args:
            timeout: seconds to wait; None: without limit.

        Returns:
            Whether everything is settled.
        """
        with self._lock:
            self._paused = True
            self._lock.notify_all()
            leased = self._lock.wait_for(lambda: not self._leasing, timeout)
            held = self._held
            held.released += [_released(shard, 0) for shard in held.ahead]
            held.ahead.clear()
            if held.current is not None:
                held.released.append(_released(held.current, held.records_done))
                held.current = None
            self._lock.notify_all()
            return leased and self._lock.wait_for(lambda: self._settled or self._error is not None, timeout)

    def resume(self) -> None:
        """Lease again."""
        with self._lock:
            self._paused = False
            self._lock.notify_all()

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self._params.name

    @property
    def trains(self) -> bool:
        """Whether the data set is for training, not for evaluation or prediction."""
        return self._params.task_type is TaskType.TRAINING

    def consumed(self) -> ConsumedShards:
        """Shards and records that were trained but may not be acknowledged yet. Call it in the loop's thread,
        between two steps."""
        with self._lock:
            held = self._held
            begun = _released(held.current, held.records_done) if held.current and held.records_done else None
            done = [key for key in (*held.sending, *held.done) if not isinstance(key, ReleasedShard)]
            # Shards beyond the limit of a message are left out and acknowledged later: they may be trained
            # again, but are not lost.
            return ConsumedShards(done=[_key(shard) for shard in done[:MAX_SHARDS_PER_MESSAGE]], begun=begun)

    def close(self, timeout: float) -> None:
        """Settle within `timeout` seconds and stop for good."""
        self.settle(timeout)
        self._stop.set()
        with self._lock:
            self._lock.notify_all()

    @property
    def _settled(self) -> bool:
        return not (self._held.done or self._held.released or self._held.sending)

    def _next(self) -> Shard | None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._held.ahead or self._over, BOUNDARY_SECONDS)
                if self._held.ahead:
                    shard = self._held.current = self._held.ahead.popleft()
                    self._held.records_done = 0
                    self._lock.notify_all()
                    return shard
                if self._error is not None:
                    raise self._error
                if self._state is LeaseState.END and self._settled:
                    return None
                if self._stop.is_set():
                    raise UnavailableError(
                        f"data set {self._params.name}: the connection to the job is closed"
                    )
            self._between()

    @property
    def _over(self) -> bool:
        return self._error is not None or (self._state is LeaseState.END and self._settled)

    def _finish(self, shard: Shard) -> None:
        with self._lock:
            if self._held.current is shard:
                self._held.current = None
                self._held.done.append(shard)
                self._lock.notify_all()

    def _lease_ahead(self) -> None:
        retries = Retries(self._stop)
        while not self._stop.is_set():
            with self._lock:
                self._lock.wait_for(self._wants_more, timeout=BOUNDARY_SECONDS)
                if self._state is LeaseState.END or self._error is not None:
                    return
                if not self._wants_more():
                    continue
                self._leasing = True
                missing = self._ask.max_shards - len(self._held.ahead)
                request = self._ask.model_copy(update={"max_shards": missing, "holding": self._held.leases()})
            try:
                reply = self._client.lease(self._params.name, request)
            except UnavailableError:
                reply = None  # DirectiveWatch logs that the master is unreachable
            except EdlError as error:
                self._fail(error)
                return
            if self._process_reply(reply):
                retries.reset()
            else:
                retries.wait()

    def _wants_more(self) -> bool:
        # Refill when half are left, so that a request gets several shards and the loop need not wait for it.
        few = len(self._held.ahead) <= self._ask.max_shards // 2
        return few and not self._paused and self._error is None and self._may_lease()

    def _process_reply(self, reply: LeaseReply | None) -> bool:
        """Process an answer. Returns False if it had no shards, so that the next request must wait."""
        with self._lock:
            self._leasing = False
            if reply is not None:
                self._held.ahead.extend(reply.shards)
                self._state = reply.state
                if reply.state is LeaseState.FAILED:
                    self._error = JobFailedError(f"data set {self._params.name} failed: {reply.reason}")
            self._lock.notify_all()
            return reply is not None and bool(reply.shards)

    def _fail(self, error: EdlError) -> None:
        with self._lock:
            self._leasing = False
            self._error = error
            self._lock.notify_all()

    def _acknowledge(self) -> None:
        retries = Retries(self._stop)
        while not self._stop.is_set():
            with self._lock:
                self._lock.wait_for(lambda: self._stop.is_set() or not self._settled)
                if self._held.ahead and not self._paused:
                    self._lock.wait_for(lambda: self._paused or self._stop.is_set(), ACK_SECONDS)
                request = AckRequest(
                    node=self._ask.node,
                    done=self._held.done[:MAX_SHARDS_PER_MESSAGE],
                    released=self._held.released[:MAX_SHARDS_PER_MESSAGE],
                )
                del self._held.done[: len(request.done)], self._held.released[: len(request.released)]
                self._held.sending = [*request.done, *request.released]
            if request.done or request.released:
                self._send(request, retries)

    def _send(self, request: AckRequest, retries: Retries) -> None:
        while not self._stop.is_set():
            try:
                reply = self._client.acknowledge(self._params.name, request)
            except UnavailableError:
                retries.wait()
                continue
            except EdlError as error:
                self._fail(error)
                break
            retries.reset()
            if reply.stale:
                log.info("data set %s: %d acknowledgements were stale", self._params.name, reply.stale)
            break
        with self._lock:
            self._held.sending = []
            self._lock.notify_all()


def consumed_by_dataset(readers: Sequence[ShardReader]) -> dict[str, ConsumedShards]:
    """What a process has trained but not acknowledged yet, by data set name."""
    consumed = {reader.name: reader.consumed() for reader in readers}
    return {name: shards for name, shards in consumed.items() if shards.done or shards.begun}


def _key(shard: ShardKey) -> ShardKey:
    """The key of a shard, without its list of records."""
    return ShardKey(epoch=shard.epoch, ordinal=shard.ordinal, lease=shard.lease, partition=shard.partition)


def _released(shard: Shard, records_done: int) -> ReleasedShard:
    return ReleasedShard(
        epoch=shard.epoch,
        ordinal=shard.ordinal,
        lease=shard.lease,
        partition=shard.partition,
        records_done=records_done,
    )
