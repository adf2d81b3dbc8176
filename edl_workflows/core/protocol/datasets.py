"""Data sets and their shards: what a worker registers, leases, acknowledges and gives back.

A shard is a range of record indices; it contains no data. It is identified by (epoch, partition, ordinal) and
carries the number of the lease under which it was handed out. Delivery is *at least once*:

* `done` is accepted from any worker that processed the shard, whether or not the master knows the lease. The
  first answer counts; later answers are duplicates. Only answers to leases from before a rollback don't
  count, because the model that was trained with those records is gone.
* `failed` and `released` count only if they come from the present holder, under the present lease; otherwise
  they are stale.

So every message may arrive twice, late, or at a master that was restored from an older snapshot.
`edl_workflows.services.master.shards` implements the rules.

The master stores acknowledgements up to a minute after it has answered them. Until then the sender keeps
them: each answer says who answers and what is stored by now (`DataReceipt`). If another master answers, the
sender sends it what the one before had not stored, and the shards that it holds.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.reported import ShortText

MAX_RECORDS = 10**11
MAX_SHARDS_PER_MESSAGE = 10_000
MAX_INDICES_PER_SHARD = 100_000
"""Limits the answer for shuffled text, the only kind of data set whose shards list each record."""
DEFAULT_MINIBATCHES_PER_SHARD = 100
"""DLRover's default in the master (its client has 10)."""

DatasetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
PartitionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,200}$")]
Records = Annotated[int, Field(ge=0, le=MAX_RECORDS)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]


class Splitter(StrEnum):
    """How records become shards (DLRover's `storage_type`)."""

    TABLE = "table"
    """Ranges `[start, end)`; `shuffle` shuffles the order of the shards."""
    TEXT = "text"
    """Ranges `[start, end)`; with `shuffle` each shard lists its records as `indices` of a shuffled order."""
    STREAMING = "streaming"
    """Ranges of offsets, from each partition in turn; the partitions may grow until the stream is closed. It
    has one epoch.
    """


class TaskType(StrEnum):
    """What the records are for.

    When the model is restored from a checkpoint, the position in training data is restored with it. A node
    that lets an evaluation shard time out is replaced.
    """

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class PartitionOffsets(Message):
    """The readable part of a partition: `[start, end)`."""

    start: Offset = 0
    end: Offset

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"end {self.end} is before start {self.start}")
        return self


class DatasetParams(Message):
    """`POST /v1/datasets`: registers a data set. Repeatable: the same parameters change nothing; other
    parameters under a known name are a conflict.

    Attributes:
        size: number of records of one epoch (table, text).
        shard_size: number of records of a shard; 0: `batch_size * num_minibatches_per_shard`, as in DLRover.
        batch_size: number of records of a step; 0 if unknown, so that completed steps are not counted.
        num_epochs: number of epochs; 0 or less: endless.
        seed: seed of the shuffle. The same seed gives the same order in every process and after every
            restart.
        partitions: streaming only: the partitions' offsets by name.
        closed: streaming only: whether the partitions won't grow any more. Only after a stream is closed, the
            short last shards of its partitions are handed out, and the data set can finish.
        max_retries: how often a shard may be retried after reported failures and time-outs before the whole
            data set fails. Deaths of workers don't count.
        timeout_s: seconds after which the shards of a lease are handed to another worker, if the holder has
            not acknowledged any of them in this time.
    """

    name: DatasetName
    splitter: Splitter = Splitter.TABLE
    size: Records = 0
    shard_size: Records = 0
    batch_size: Records = 0
    num_minibatches_per_shard: int | None = Field(default=None, ge=1, le=10**6)
    num_epochs: int = Field(default=1, le=10**6)
    shuffle: bool = False
    seed: int = Field(default=0, ge=0, lt=2**63)
    task_type: TaskType = TaskType.TRAINING
    partitions: dict[PartitionName, PartitionOffsets] = Field(default_factory=dict, max_length=10_000)
    closed: bool = True
    max_retries: int = Field(default=3, ge=0, le=1000)
    timeout_s: float = Field(default=1800.0, ge=1.0, le=7 * 86_400.0)

    @property
    def records_per_shard(self) -> int:
        """The size of a full shard, from `shard_size` or from the batch size."""
        per_shard = self.num_minibatches_per_shard or DEFAULT_MINIBATCHES_PER_SHARD
        return self.shard_size or self.batch_size * per_shard

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shard_size and self.num_minibatches_per_shard:
            raise ValueError("say shard_size or num_minibatches_per_shard, not both")
        if not self.records_per_shard:
            raise ValueError("say shard_size, or batch_size (with num_minibatches_per_shard)")
        if self.splitter is Splitter.STREAMING:
            self._check_streaming()
        else:
            self._check_sized()
        return self

    def _check_streaming(self) -> None:
        if not self.partitions:
            raise ValueError("partitions: a streaming data set needs at least one")
        if self.size or self.shuffle or self.num_epochs != 1:
            raise ValueError("a streaming data set has no size, no shuffle and one epoch")

    def _check_sized(self) -> None:
        if not self.size:
            raise ValueError(f"size: a {self.splitter} data set needs at least one record")
        if self.partitions or not self.closed:
            raise ValueError(
                f"partitions and closed belong to streaming data sets, this one is {self.splitter}"
            )
        listed = self.splitter is Splitter.TEXT and self.shuffle
        if listed and self.records_per_shard > MAX_INDICES_PER_SHARD:
            raise ValueError(
                f"shard_size: at most {MAX_INDICES_PER_SHARD} for shuffled text, which lists each record"
            )


class StreamUpdate(Message):
    """`POST /v1/datasets/{name}/offsets`: the present ends of the partitions. Repeatable; ends never move
    back.

    Attributes:
        ends: end offset by partition; partitions that are left out don't change, new ones are rejected.
        closed: whether the partitions won't grow any more; this can't be undone.
    """

    ends: dict[PartitionName, Offset] = Field(default_factory=dict, max_length=10_000)
    closed: bool = False


class ShardKey(Message):
    """Identifies a shard, and the lease under which it was handed out.

    Attributes:
        epoch: counted from 1.
        ordinal: place in the order of the epoch or partition, counted from 0.
        lease: number of the lease; it grows with each lease of the data set (a fencing token).
        partition: name of the partition; streaming only.
    """

    epoch: int = Field(ge=1)
    ordinal: int = Field(ge=0)
    lease: int = Field(ge=1)
    partition: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9._:/-]*$")] = ""


class Shard(ShardKey):
    """A shard to process: the records `[start, end)`, or those listed in `indices`.

    Attributes:
        indices: shuffled text only: the records themselves (as many as `end - start`).
    """

    start: int
    end: int
    indices: list[int] | None = None


class LeaseState(StrEnum):
    """What a worker must do next."""

    OK = "ok"
    """Process the shards."""
    WAIT = "wait"
    """No shards now, but some may be re-queued, or the stream may grow: ask again later."""
    END = "end"
    """The data set is consumed."""
    FAILED = "failed"
    """A shard failed too often; the reason names it. No more shards are handed out."""


class HeldShard(ShardKey):
    """A shard that a process holds, reported to a new master.

    Attributes:
        start: of the shard, as it was leased.
    """

    start: int


class DataReceipt(Message):
    """Which master answers, and which of its changes are stored.

    An older master, which stores each acknowledgement before it answers, leaves all out.

    Attributes:
        master: identifies the master; each start of a master has another identity.
        change: number of the newest change that this answer includes; it grows while the master runs.
        durable: all changes up to this number are stored.
    """

    master: str = ""
    change: int = 0
    durable: int = 0


class LeaseRequest(Message):
    """`POST /v1/datasets/{name}/lease`: requests shards.

    Attributes:
        max_shards: at most this many; there may be fewer.
        holding: numbers of all leases that this node holds. Shards that the master has leased to the node
            under other numbers are re-queued at once, since the answer that granted them was lost. None: not
            stated.
        version: cluster version of the requesting training process; 0: not stated. Only processes of the
            active version get data; others are answered WAIT, because a process that outlives its parameter
            servers must not consume records.
        keeps: whether the sender keeps its acknowledgements until they are stored, and reports what it holds
            to each new master. Only then a lease need not be stored soon.
        master: the master that answered this process last; "" if none did. Another master answers WAIT until
            the process has reported what it holds.
        done: shards that are done, so that they need no message of their own. Only from a sender that keeps
            them; recorded as in an `AckRequest`, whatever the answer about new shards is.
    """

    node: NodeRef
    version: int = Field(default=0, ge=0)
    max_shards: int = Field(default=1, ge=1, le=MAX_SHARDS_PER_MESSAGE)
    holding: list[int] | None = Field(default=None, max_length=MAX_SHARDS_PER_MESSAGE)
    keeps: bool = False
    master: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{0,64}$")] = ""
    done: list[ShardKey] = Field(default_factory=list, max_length=MAX_SHARDS_PER_MESSAGE)


class LeaseReply(DataReceipt):
    """Answer to `LeaseRequest`.

    Attributes:
        state: state of the data set.
        shards: the granted shards; empty unless `state` is OK.
        recorded: whether what the request says is `done` was recorded. An older master leaves it out: it
            ignores them, and they must be acknowledged by an `AckRequest`.
    """

    state: LeaseState
    shards: list[Shard] = Field(default_factory=list)
    reason: str = ""
    recorded: bool = False


class FailedShard(ShardKey):
    """A shard that could not be processed, and why (for the data set's failure reason)."""

    message: ShortText = ""


class ReleasedShard(ShardKey):
    """A shard given back unfinished, for example on drain.

    Attributes:
        records_done: number of records that are done, from the shard's beginning; only the remaining records
            are handed out again.
        start: of the shard, as it was leased. With it, a master that does not know the lease, because it was
            not stored, can count the records that are done. None: not stated.
    """

    records_done: int = Field(default=0, ge=0)
    start: int | None = None


class AckRequest(Message):
    """`POST /v1/datasets/{name}/ack`: results of leased shards. Repeatable.

    Attributes:
        keeps: whether the sender keeps what is done, and sends it to the next master again unless an answer
            has shown that it is stored. Such a message is answered at once, if nothing failed or was
            released; any other once its results are stored.
        held: the shards that the sender holds; reported to each new master, which continues their leases.
            None: not stated.
    """

    node: NodeRef
    done: list[ShardKey] = Field(default_factory=list, max_length=MAX_SHARDS_PER_MESSAGE)
    failed: list[FailedShard] = Field(default_factory=list, max_length=MAX_SHARDS_PER_MESSAGE)
    released: list[ReleasedShard] = Field(default_factory=list, max_length=MAX_SHARDS_PER_MESSAGE)
    keeps: bool = False
    held: list[HeldShard] | None = Field(default=None, max_length=MAX_SHARDS_PER_MESSAGE)


class AckReply(DataReceipt):
    """Answer to `AckRequest`.

    Attributes:
        accepted: number of shards that were counted.
        duplicates: number of shards that were done before.
        stale: number of shards that were not counted: the lease was void after a rollback, a failure or
            release came from a former holder, or the master knows no such shard. Their records are handed out
            again; the worker need not do anything.
        state: state of the data set: OK while there is work to do or to wait for, else END or FAILED.
    """

    accepted: int = 0
    duplicates: int = 0
    stale: int = 0
    state: LeaseState
    reason: str = ""


class DatasetProgress(Message):
    """`GET /v1/datasets/{name}`: the progress of a data set.

    Attributes:
        epoch: the newest epoch that was begun, counted from 1; 0 before the first shard.
        records_done: number of acknowledged records in all epochs; each shard is counted once per epoch.
        records_total: number of records in all epochs; None if the data set is endless or an open stream.
        completed_steps: sum of `ceil(records / batch_size)` over the shards, as in DLRover; None without a
            batch size.
        shards_leased: number of shards that are handed out and not answered yet.
        shards_returned: number of shards that were given back, failed or timed out, and wait for another
            worker.
        failures, timeouts: how often shards were re-queued for that reason.
        reason: why the data set failed.
    """

    name: str
    task_type: TaskType
    state: LeaseState
    reason: str = ""
    epoch: int
    num_epochs: int
    records_done: int
    records_total: int | None
    completed_steps: int | None
    shards_leased: int
    shards_returned: int
    failures: int
    timeouts: int
