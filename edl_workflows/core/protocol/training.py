"""What a training process reports while it trains, and what its master shows of it."""

import math
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, field_validator

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.datasets import MAX_SHARDS_PER_MESSAGE, DatasetName, ReleasedShard, ShardKey
from edl_workflows.core.protocol.function_result import ResultText
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.metrics import LOSS, MAX_METRICS, FiniteNumber, MetricName, Metrics
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.core.protocol.reported import (
    CheckpointUri,
    ErrorText,
    Identifier,
    OptionalCheckpointUri,
    ShortText,
)

UnixSeconds = Annotated[float, Field(ge=0, le=1e11)]
"""A time, within the range of calendars."""
MAX_FINGERPRINTS = 256
_CHECKPOINT_URI: TypeAdapter[str] = TypeAdapter(CheckpointUri)
GlobalStep = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Annotated[float, Field(ge=0)]


class StepReport(Message):
    """`POST /v1/steps`: the newest global step of this worker (sent at most a few times per second).

    Attributes:
        first_step_time, time: when this process made its first step in its version, and its newest step, in
            Unix seconds of the reporting machine. The pause of a switch is computed from them.
        loss: loss of the step; also None if it is not a finite number.
        records: number of records done in all epochs of a collective job; its members divide the data among
            themselves.
        records_total: number of records of all epochs of a collective job; 0 if there is no end, or it is
            unknown.
        known: see `edl_workflows.core.protocol.nodes.Heartbeat`.
        metrics: values that the program chose to report, by name.
    """

    node: NodeRef
    version: int = Field(ge=1)
    step: GlobalStep
    records: int = Field(default=0, ge=0, lt=2**63)
    records_total: int = Field(default=0, ge=0, lt=2**63)
    time: UnixSeconds
    first_step_time: UnixSeconds
    known: int = -1
    loss: float | None = None
    metrics: Metrics = Field(default_factory=dict)

    @field_validator("loss", mode="before")
    @classmethod
    def _diverged(cls, value: object) -> object:
        """Drop a loss that is not finite, so that the report of the step is still accepted."""
        return None if isinstance(value, float) and not math.isfinite(value) else value


class StepReceipt(Directive):
    """The answer to a `StepReport`: a directive as for a `Heartbeat`, and what the next report depends on.

    Attributes:
        awaited: the next step that somebody waits for, which is to be reported as soon as it is made; 0 if
            there is none.
    """

    awaited: int = 0


class ResultReport(Message):
    """`POST /v1/result`: what the training function of a worker returned. Every worker may report; the master
    keeps the result of the lowest rank. Repeatable.

    Attributes:
        result: a JSON value as text.
    """

    node: NodeRef
    result: ResultText


class ResultReceipt(Message):
    """Answer to `ResultReport`.

    Attributes:
        kept: whether it is the job's result now.
    """

    kept: bool


class ConsumedShards(Message):
    """The part of a data set that a process has trained but not acknowledged yet.

    Attributes:
        done: whole shards.
        begun: the shard in progress, with the number of its records that are done.
    """

    done: list[ShardKey] = Field(default_factory=list, max_length=MAX_SHARDS_PER_MESSAGE)
    begun: ReleasedShard | None = None


class Evaluation(Message):
    """A model's evaluation on fixed records: one number that depends only on its variables, such as the loss.

    Attributes:
        value: the number; None if there is none.
        problem: why there is none.
        fingerprints: for each variable, a digest of a fixed sample of its rows; empty if the program gives
            none.
    """

    value: float | None = None
    problem: ShortText = ""
    fingerprints: dict[ShortText, Identifier] = Field(default_factory=dict, max_length=MAX_FINGERPRINTS)


class ModelReport(Message):
    """`POST /v1/checkpoints/model`: the chief's evaluation of a restored model, on the same records as before
    the model was saved. Until this is answered, no process trains in the version. Repeatable.
    """

    node: NodeRef
    version: int = Field(ge=1)
    evaluation: Evaluation


class ModelVerdict(Message):
    """Answer to `ModelReport`.

    Attributes:
        refused: why the version must not train, because its model differs from the previous version's; "" if
            it may train.
    """

    refused: str = ""


class CheckpointBegin(Message):
    """`POST /v1/checkpoints`: the chief is about to save. The master records the present data position: all
    records that were acknowledged before are in the checkpoint, so that a restore can reset model and data
    together.

    Attributes:
        request: the directive's `save` id, or "" for a periodic checkpoint.
        consumed: what the chief itself has trained but not acknowledged yet, by data set; it is also in the
            checkpoint.
        evaluation: the model's present evaluation, if the checkpoint was requested; None if the program
            provides none.
        last: whether this is an attempt to save the training's last checkpoint. The chief repeats such
            attempts for some time by itself, so a failure does not count for `maxFailedSaves`.
    """

    node: NodeRef
    version: int = Field(ge=1)
    request: Identifier = ""
    consumed: dict[DatasetName, ConsumedShards] = Field(default_factory=dict, max_length=1000)
    evaluation: Evaluation | None = None
    last: bool = False


class CheckpointTicket(Message):
    """Answer to `CheckpointBegin`: the id under which the result of the save must be reported.

    Attributes:
        position: the data position that the master has recorded, for the checkpoint's manifest; opaque to the
            training process.
    """

    id: str
    position: dict[str, Any] | None = None


class CheckpointEnd(Message):
    """`POST /v1/checkpoints/{id}`: the checkpoint is complete in storage, or failed for the reason `error`.
    Repeatable.
    """

    node: NodeRef
    uri: OptionalCheckpointUri = ""
    step: GlobalStep = 0
    error: ErrorText = ""


class CheckpointRestore(Message):
    """`POST /v1/checkpoints/restored`: the master named no checkpoint, but the chief found one to start from.
    The master moves the data to that checkpoint's position before any process trains. Repeatable.

    Attributes:
        version: cluster version of the chief's process.
        position: the data position from the checkpoint's manifest; None if it has none.
    """

    node: NodeRef
    version: int = Field(ge=1)
    uri: CheckpointUri
    step: GlobalStep
    position: dict[str, Any] | None = None


class CheckpointDamage(Message):
    """`POST /v1/checkpoints/damaged`: a checkpoint to start from can't be restored. Repeatable.

    Attributes:
        version: cluster version of the process that could not restore it.
        uri: the checkpoint, or the folder of the checkpoints if none of them is intact.
        error: what is wrong, and with which file.
        instead: the checkpoint from which the process starts instead. None if it can't start: the master then
            names an older checkpoint together with its data position, or fails the job.
    """

    node: NodeRef
    version: int = Field(ge=1)
    uri: CheckpointUri
    error: ErrorText
    instead: CheckpointRef | None = None

    @field_validator("instead")
    @classmethod
    def _reported(cls, value: CheckpointRef | None) -> CheckpointRef | None:
        if value is not None:
            _CHECKPOINT_URI.validate_python(value.uri)
        return value


class LiveFigures(Message):
    """`GET /v1/live`: how far training is now. The job's status shows the same, but older.

    Attributes:
        time: when this was measured.
        step: global step.
        speed: steps per second.
        records, records_per_second: acknowledged ones.
        records_total: of all epochs; 0 if unknown or endless.
        goodput: useful over elapsed time, from 0 to 1.
        memory: of all training pods, in MiB; None if they have not reported it.
        metrics: the newest values that the program reported, the loss among them.
    """

    time: UnixSeconds
    step: GlobalStep = 0
    speed: Amount = 0.0
    records: int = Field(default=0, ge=0)
    records_per_second: Amount = 0.0
    records_total: int = Field(default=0, ge=0)
    goodput: float = Field(default=0.0, ge=0, le=1)
    memory: Amount | None = None
    metrics: dict[MetricName, FiniteNumber] = Field(default_factory=dict, max_length=MAX_METRICS + 1)

    @property
    def seconds_left(self) -> float | None:
        """Until all records are trained at the present speed; None if that is unknown."""
        left = self.records_total - self.records
        if not self.records_total or left < 0:
            return None
        try:
            seconds = left / self.records_per_second if left else 0.0
        except (ZeroDivisionError, OverflowError):
            return None
        return seconds if math.isfinite(seconds) else None

    @property
    def loss(self) -> float | None:
        """The newest loss, if the program reports one."""
        return self.metrics.get(LOSS)
