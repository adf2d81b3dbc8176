"""Shards of a data set for one training process, leased and acknowledged by background threads.

Delivery is at least once: a shard is acknowledged only when the loop asks for the next one. When the process
stops, it returns the shards that it holds; a partly processed shard is returned with the number of records
that have been processed. What the master has not stored yet, the process keeps (`held_shards`).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from edl_workflows.core.exceptions import EdlError, InvalidError, JobFailedError, UnavailableError
from edl_workflows.core.protocol.datasets import (
    AckRequest,
    DatasetParams,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    Shard,
    TaskType,
)
from edl_workflows.core.protocol.message import describe_problems
from edl_workflows.core.protocol.training import ConsumedShards
from edl_workflows.training.client import MasterClient, Retries
from edl_workflows.training.data.held_shards import HeldShards

ACK_SECONDS = 0.2
"""Most seconds for which an acknowledgement waits for the next request for shards, which carries it, or for
others that are sent in the same message."""
REPORT_SECONDS = 5.0
"""Seconds after which a process that has nothing to acknowledge asks who is its master: another one grants no
shards before it knows who holds which."""
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
        self._held = HeldShards()
        self._lock = threading.Lock()
        # Each thread is woken by what it waits for only: waking all costs more than everything else.
        self._progress = threading.Condition(self._lock)
        """Shards or answers came; the loop waits for it."""
        self._room = threading.Condition(self._lock)
        """More shards may be leased."""
        self._results = threading.Condition(self._lock)
        """Results are to be sent."""
        self._state = LeaseState.OK
        self._error: EdlError | None = None
        self._paused = False
        self._leasing = False
        self._granted = True
        """Whether the last request for shards was answered with shards."""
        self._collecting = False
        """Whether the sender of acknowledgements waits for the next request for shards."""
        self._unsent_since = 0.0
        """When the oldest shard that is not acknowledged was processed; by a monotonic clock."""
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
            self._results.notify()
            leased = self._progress.wait_for(lambda: not self._leasing, timeout)
            self._held.give_back()
            self._results.notify()
            return leased and self._progress.wait_for(
                lambda: self._held.settled or self._error is not None, timeout
            )

    def resume(self) -> None:
        """Lease again."""
        with self._lock:
            self._paused = False
            self._room.notify()

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self._params.name

    @property
    def trains(self) -> bool:
        """Whether the data set is for training, not for evaluation or prediction."""
        return self._params.task_type is TaskType.TRAINING

    def consumed(self) -> ConsumedShards:
        """Shards and records that were trained but may not be stored yet. Call it in the loop's thread,
        between two steps."""
        with self._lock:
            return self._held.consumed()

    def close(self, timeout: float) -> None:
        """Settle within `timeout` seconds and stop for good."""
        self.settle(timeout)
        self._stop.set()
        with self._lock:
            for condition in (self._progress, self._room, self._results):
                condition.notify_all()

    def _next(self) -> Shard | None:
        while True:
            with self._lock:
                self._progress.wait_for(lambda: self._held.ahead or self._over, BOUNDARY_SECONDS)
                if self._held.ahead:
                    shard = self._held.begin()
                    if not self._leasing and self._wants_more():
                        self._room.notify()
                    return shard
                if self._error is not None:
                    raise self._error
                if self._state is LeaseState.END and self._held.settled:
                    return None
                if self._stop.is_set():
                    raise UnavailableError(
                        f"data set {self._params.name}: the connection to the job is closed"
                    )
            self._between()

    @property
    def _over(self) -> bool:
        return self._error is not None or (self._state is LeaseState.END and self._held.settled)

    def _finish(self, shard: Shard) -> None:
        with self._lock:
            if not self._held.done:
                self._unsent_since = time.monotonic()
            self._held.finish(shard)
            self._wake_sender()

    def _lease_ahead(self) -> None:
        retries = Retries(self._stop)
        while not self._stop.is_set():
            with self._lock:
                self._room.wait_for(self._wants_more, timeout=BOUNDARY_SECONDS)
                if self._state is LeaseState.END or self._error is not None:
                    return
                if not self._wants_more():
                    continue
                self._leasing = True
                request = self._held.lease_request(self._ask)
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
        few = len(self._held.ahead) <= self._ask.max_shards // 2 and self._held.may_lease
        return few and not self._paused and self._error is None and self._may_lease()

    def _process_reply(self, reply: LeaseReply | None) -> bool:
        """Process an answer. Returns False if it had no shards, so that the next request must wait."""
        with self._lock:
            self._leasing = False
            self._granted = reply is not None and bool(reply.shards)
            if reply is None:
                self._held.note_no_lease()
            else:
                self._held.note_lease(reply)
                self._state = reply.state
                if reply.state is LeaseState.FAILED:
                    self._error = JobFailedError(f"data set {self._params.name} failed: {reply.reason}")
            self._wake_sender()
            self._progress.notify_all()
            return self._granted

    def _fail(self, error: EdlError) -> None:
        with self._lock:
            self._leasing = False
            self._held.note_no_lease()
            self._error = error
            self._wake_sender()
            self._progress.notify_all()
            self._room.notify()

    def _acknowledge(self) -> None:
        retries = Retries(self._stop)
        while not self._stop.is_set():
            with self._lock:
                due = self._results.wait_for(self._must_send, REPORT_SECONDS)
                if self._stop.is_set():
                    return
                if not (due or self._asks_master):
                    continue
                if due and self._collect():
                    continue
                stored = self._ends and not self._held.settled
                request = self._held.acknowledgement(self._ask, stored=stored)
            if not self._send(request, retries):
                return

    def _collect(self) -> bool:
        """Wait until the results are carried by a request for shards, or are to be sent. Returns False if
        they are."""
        left = self._unsent_since + ACK_SECONDS - time.monotonic()
        if left <= 0 or not self._may_wait():
            return False
        self._collecting = True
        self._results.wait_for(lambda: self._stop.is_set() or not self._may_wait(), left)
        self._collecting = False
        return True

    def _may_wait(self) -> bool:
        """Whether others will follow the results, or the next request for shards will carry them."""
        held = self._held
        if self._ends or not held.may_lease:
            return False
        return bool(held.ahead) or (held.carries and self._granted and (self._leasing or self._wants_more()))

    def _wake_sender(self) -> None:
        """Wake the sender of acknowledgements if it has something to do now."""
        if self._must_send() and not (self._collecting and self._may_wait()):
            self._results.notify()

    def _must_send(self) -> bool:
        held = self._held
        # What a request for shards carries is noted with its answer.
        must_store = self._ends and not (held.settled or held.carried)
        return self._stop.is_set() or held.unsent or must_store

    @property
    def _ends(self) -> bool:
        """Whether all must be stored now, since the process leases no more."""
        return self._paused or self._state is LeaseState.END

    @property
    def _asks_master(self) -> bool:
        return bool(self._held.master) and self._state is not LeaseState.END and self._error is None

    def _send(self, request: AckRequest, retries: Retries) -> bool:
        """Send until it is answered. Returns False if the master rejects it, so that no other is sent."""
        while not self._stop.is_set():
            try:
                reply = self._client.acknowledge(self._params.name, request)
            except UnavailableError:
                retries.wait()
                continue
            except EdlError as error:
                with self._lock:
                    self._held.sending = None
                self._fail(error)
                return False
            retries.reset()
            if reply.stale:
                log.info("data set %s: %d acknowledgements were stale", self._params.name, reply.stale)
            with self._lock:
                self._held.note_acknowledged(reply)
                self._progress.notify_all()
                self._room.notify()
            return True
        return False


def consumed_by_dataset(readers: Sequence[ShardReader]) -> dict[str, ConsumedShards]:
    """What a process has trained but not acknowledged yet, by data set name."""
    consumed = {reader.name: reader.consumed() for reader in readers}
    return {name: shards for name, shards in consumed.items() if shards.done or shards.begun}
