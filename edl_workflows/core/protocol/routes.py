"""The calls of a master's HTTP API. The client, the server and the reference page read these tables."""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    DatasetProgress,
    LeaseReply,
    LeaseRequest,
    StreamUpdate,
)
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.nodes import (
    CheckReport,
    CrashReport,
    Directive,
    ExitReport,
    ExitVerdict,
    Heartbeat,
    LeaveReport,
    LeaveVerdict,
    NodeType,
    PresenceReport,
    ProcessReport,
    Registration,
    StackReport,
)
from edl_workflows.core.protocol.sync import BarrierState, SyncJoin, SyncState
from edl_workflows.core.protocol.training import (
    CheckpointBegin,
    CheckpointDamage,
    CheckpointEnd,
    CheckpointRestore,
    CheckpointTicket,
    LiveFigures,
    ModelReport,
    ModelVerdict,
    ResultReceipt,
    ResultReport,
    StepReceipt,
    StepReport,
)

Request = TypeVar("Request", bound=Message | dict[str, Any])
Answer = TypeVar("Answer")

MAX_WAIT = 30.0
"""Longest long poll, in seconds."""
LongPoll = Annotated[float, Field(ge=0, le=MAX_WAIT)]


class DirectiveQuery(Message):
    """Query of `DIRECTIVE`: the node, the newest revision that it has, and the seconds to wait for a newer
    one.
    """

    type: NodeType
    id: int = Field(ge=0)
    after: int = 0
    wait: LongPoll = MAX_WAIT


class WaitQuery(Message):
    """Query of a call that can wait: for how many seconds at most."""

    wait: LongPoll = 0.0


@dataclass(frozen=True)
class Route(Generic[Request, Answer]):
    """A call of the API.

    Attributes:
        method, path: names in braces stand for parts of the path.
        request: model of the body, or of a GET's query; `dict`: the body is a manifest; None: the call has
            neither.
        answer: model of the answer; `dict`: JSON for people; `str`: text.
        durable: whether the answer waits until the change is stored.
        summary: a clause for the reference page.
        answered: when the call is answered, if `durable` does not say it all.
        open: whether the call needs no token.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    request: type[Request] | None
    answer: type[Answer]
    durable: bool = False
    summary: str = ""
    answered: str = ""
    open: bool = False

    @property
    def query(self) -> tuple[str, ...]:
        """The names of a GET's parameters."""
        if self.method != "GET" or self.request is None or not issubclass(self.request, Message):
            return ()
        return tuple(self.request.model_fields)


_POLL = f"long poll, at most {MAX_WAIT:.0f} s"

REGISTER = Route("POST", "/v1/nodes", Registration, Directive, durable=True, summary="idempotent")
HEARTBEAT = Route("POST", "/v1/nodes/heartbeat", Heartbeat, Directive, summary="every 5 s")
DIRECTIVE = Route(
    "GET", "/v1/directive", DirectiveQuery, Directive, summary=_POLL, answered="once it is newer than `after`"
)
PROCESS = Route(
    "POST",
    "/v1/processes",
    ProcessReport,
    Directive,
    durable=True,
    summary="connected, ready, drained, training, unfit",
)
CRASH = Route(
    "POST", "/v1/processes/crashes", CrashReport, Directive, durable=True, summary="of a prepared process"
)
DEATH = Route(
    "POST",
    "/v1/processes/deaths",
    ExitReport,
    Directive,
    durable=True,
    summary="of a member whose group can continue without it; the exit follows",
)
PRESENCE = Route(
    "POST",
    "/v1/processes/presence",
    PresenceReport,
    Directive,
    summary="every 2 s while a member's process reports no step: that the process is alive, and how long it "
    "has waited for the others",
)
STACKS = Route(
    "POST", "/v1/nodes/stacks", StackReport, Directive, summary="the stacks for which the directive asked"
)
NODE_CHECK = Route(
    "POST",
    "/v1/nodes/check",
    CheckReport,
    Directive,
    durable=True,
    summary="what a node measured before training",
)
EXIT = Route(
    "POST",
    "/v1/nodes/exit",
    ExitReport,
    ExitVerdict,
    durable=True,
    summary="whether the agent ends or waits for the next cluster version",
    answered="once decided and stored",
)
LEAVE = Route(
    "POST",
    "/v1/nodes/leave",
    LeaveReport,
    LeaveVerdict,
    summary="every second from a node whose pod is told to end, until it may",
)
STEP = Route(
    "POST",
    "/v1/steps",
    StepReport,
    StepReceipt,
    summary="the newest step, at most a few times per second, and a step that somebody waits for at once",
    answered="at once; the first step of a version once stored",
)
RESULT = Route(
    "POST",
    "/v1/result",
    ResultReport,
    ResultReceipt,
    durable=True,
    summary="what a training function returned",
)
BEGIN_CHECKPOINT = Route(
    "POST",
    "/v1/checkpoints",
    CheckpointBegin,
    CheckpointTicket,
    durable=True,
    summary="records the data position",
)
RESTORED_CHECKPOINT = Route(
    "POST",
    "/v1/checkpoints/restored",
    CheckpointRestore,
    Directive,
    durable=True,
    summary="the checkpoint from which the chief starts",
)
DAMAGED_CHECKPOINT = Route(
    "POST",
    "/v1/checkpoints/damaged",
    CheckpointDamage,
    Directive,
    durable=True,
    summary="a checkpoint that can't be restored",
)
MODEL = Route(
    "POST",
    "/v1/checkpoints/model",
    ModelReport,
    ModelVerdict,
    durable=True,
    summary="the result of an evaluation, compared with that before the change",
)
END_CHECKPOINT = Route(
    "POST",
    "/v1/checkpoints/{ticket}",
    CheckpointEnd,
    CheckpointRef,
    durable=True,
    summary="a save that is complete or failed",
)
DATASET = Route("POST", "/v1/datasets", DatasetParams, DatasetProgress, durable=True, summary="idempotent")
LEASE = Route(
    "POST",
    "/v1/datasets/{name}/lease",
    LeaseRequest,
    LeaseReply,
    summary="records the shards that are done, and grants others",
    answered="at once; the first lease of a node or of an epoch, and the end, once stored",
)
ACKNOWLEDGE = Route(
    "POST",
    "/v1/datasets/{name}/ack",
    AckRequest,
    AckReply,
    durable=True,
    summary="results of leased shards",
    answered="once stored; at once if the sender keeps what is done",
)
OFFSETS = Route(
    "POST",
    "/v1/datasets/{name}/offsets",
    StreamUpdate,
    DatasetProgress,
    durable=True,
    summary="new ends of a stream's partitions",
)
PROGRESS: Route[Any, DatasetProgress] = Route(
    "GET", "/v1/datasets/{name}", None, DatasetProgress, summary="the progress of a data set"
)
JOIN_SYNC = Route(
    "POST",
    "/v1/sync/{name}",
    SyncJoin,
    SyncState,
    durable=True,
    summary="a worker has reached a synchronization point",
)
SYNC = Route(
    "GET", "/v1/sync/{name}", WaitQuery, SyncState, summary=_POLL, answered="once the group is complete"
)
OPEN_BARRIER: Route[Any, BarrierState] = Route(
    "POST", "/v1/barriers/{name}", None, BarrierState, durable=True, summary="opens a barrier"
)
BARRIER = Route(
    "GET", "/v1/barriers/{name}", WaitQuery, BarrierState, summary=_POLL, answered="once the barrier is open"
)
STATUS: Route[Any, dict[str, Any]] = Route(
    "GET", "/v1/status", None, dict, summary="the state of the job, for debugging"
)
LIVE: Route[Any, LiveFigures] = Route(
    "GET", "/v1/live", None, LiveFigures, summary="the figures of `edl top`", open=True
)
HEALTH: Route[Any, str] = Route("GET", "/healthz", None, str, summary="`ok`", open=True)
METRICS: Route[Any, str] = Route(
    "GET", "/metrics", None, str, summary="metrics in Prometheus' format", open=True
)

ROUTES: tuple[Route[Any, Any], ...] = tuple(
    route for route in list(globals().values()) if isinstance(route, Route)
)
"""The routes of every master: those above, in their order."""

SUBMIT_PLAN: Route[dict[str, Any], dict[str, Any]] = Route(
    "POST", "/v1/scaleplans", dict, dict, durable=True, summary="the manifest of a ScalePlan, as it is stored"
)
PLAN: Route[Any, dict[str, Any]] = Route(
    "GET", "/v1/scaleplans/{name}", None, dict, summary="a ScalePlan with its status"
)
DELETE_PLAN: Route[Any, None] = Route(
    "DELETE",
    "/v1/scaleplans/{name}",
    None,
    type(None),
    durable=True,
    summary="a ScalePlan whose version is not active yet is rolled back",
)

STANDALONE_ROUTES: tuple[Route[Any, Any], ...] = (SUBMIT_PLAN, PLAN, DELETE_PLAN)
"""What a master without a Kubernetes API serves, too."""
