"""The master's HTTP API as typed calls. The only place in the agent that touches urllib3.

Each method makes one attempt; `call_until_answered` retries.
"""

import contextlib
import json
import logging
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlencode

import urllib3
from pydantic import ValidationError

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.protocol import routes
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
    NodeRef,
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
    ModelReport,
    ModelVerdict,
    ResultReceipt,
    ResultReport,
    StepReceipt,
    StepReport,
)

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""Must be longer than the master's grouped write, which takes about a second: an acknowledgement waits for
it."""
IDLE_CONNECTIONS = 16
"""Most connections that are kept for later calls: the threads of a process that call at a time are fewer. The
master's Service is deleted together with the job; a last checkpoint is reported over connections that are
open by then."""
FIRST_DELAY = 0.1
"""Seconds: a brief failure should cost little, even during a switch of versions."""
LONGEST_DELAY = 3.0
"""Seconds; limits the load that the nodes of a large job put on a master that restarts."""

Result = TypeVar("Result")
Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)

log = logging.getLogger(__name__)

_ERRORS: dict[int, type[EdlError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    422: InvalidError,
}


class MasterClient:
    """HTTP calls of one node. Thread-safe; threads share a connection pool.

    Every method raises:
        UnavailableError: the master did not answer, or failed, or has just ended the idle connection that was
            used. The same call may succeed later.
        ForbiddenError, NotFoundError, ConflictError, InvalidError: the master rejected the call, with its own
            message.

    Args:
        url: base URL.
        token: bearer token of the job.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connections = urllib3.connection_from_url(url, maxsize=IDLE_CONNECTIONS)
        self._prefix = (urllib3.util.parse_url(url).path or "").rstrip("/")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Running calls of other threads finish; new calls are rejected."""
        self._connections.close()

    def register(self, registration: Registration) -> Directive:
        """Register the node when the agent has started."""
        return self._call(routes.REGISTER, registration)

    def heartbeat(self, heartbeat: Heartbeat) -> Directive:
        """Report that the node is alive."""
        return self._call(routes.HEARTBEAT, heartbeat)

    def directive(self, node: NodeRef, after: int, wait: float) -> Directive:
        """The node's directive; waits up to `wait` seconds for one that is newer than revision `after`."""
        query = routes.DirectiveQuery(type=node.type, id=node.id, after=after, wait=wait)
        return self._call(routes.DIRECTIVE, query)

    def process(self, report: ProcessReport) -> Directive:
        """Report that a training process reached a state."""
        return self._call(routes.PROCESS, report)

    def died(self, report: ExitReport) -> Directive:
        """Report at once that the node's training process has ended."""
        return self._call(routes.DEATH, report)

    def presence(self, report: PresenceReport) -> Directive:
        """Report that a training process is alive, and whether it waits for other members."""
        return self._call(routes.PRESENCE, report)

    def crash(self, report: CrashReport) -> Directive:
        """Report that a training process exited while preparing."""
        return self._call(routes.CRASH, report)

    def stacks(self, report: StackReport) -> Directive:
        """Report the stacks of the node's training process."""
        return self._call(routes.STACKS, report)

    def node_check(self, report: CheckReport) -> Directive:
        """Report the measurement of a node check."""
        return self._call(routes.NODE_CHECK, report)

    def exit(self, report: ExitReport) -> ExitVerdict:
        """Report the exit of the training process; the answer says whether to wait for the next version."""
        return self._call(routes.EXIT, report)

    def leave(self, report: LeaveReport) -> LeaveVerdict:
        """Report that the node's pod is told to end; the answer says whether it is still needed."""
        return self._call(routes.LEAVE, report)

    def step(self, report: StepReport) -> StepReceipt:
        """Report the newest training step."""
        return self._call(routes.STEP, report)

    def result(self, report: ResultReport) -> ResultReceipt:
        """Report what the training function returned."""
        return self._call(routes.RESULT, report)

    def begin_checkpoint(self, begin: CheckpointBegin) -> CheckpointTicket:
        """Announce a checkpoint; the master records the data position."""
        return self._call(routes.BEGIN_CHECKPOINT, begin)

    def end_checkpoint(self, ticket: str, end: CheckpointEnd) -> CheckpointRef:
        """Report a checkpoint complete, or failed."""
        return self._call(routes.END_CHECKPOINT, end, ticket=ticket)

    def restored_checkpoint(self, restore: CheckpointRestore) -> Directive:
        """Report the checkpoint that the chief starts from."""
        return self._call(routes.RESTORED_CHECKPOINT, restore)

    def report_model(self, report: ModelReport) -> ModelVerdict:
        """Report the evaluation of the restored model; the answer says whether the version may train."""
        return self._call(routes.MODEL, report)

    def damaged_checkpoint(self, damage: CheckpointDamage) -> Directive:
        """Report a checkpoint that can't be restored."""
        return self._call(routes.DAMAGED_CHECKPOINT, damage)

    def dataset(self, params: DatasetParams) -> DatasetProgress:
        """Register a data set."""
        return self._call(routes.DATASET, params)

    def progress(self, dataset: str) -> DatasetProgress:
        """Get the progress of a data set."""
        return self._call(routes.PROGRESS, name=dataset)

    def offsets(self, dataset: str, update: StreamUpdate) -> DatasetProgress:
        """Report the current end offsets of a stream's partitions."""
        return self._call(routes.OFFSETS, update, name=dataset)

    def lease(self, dataset: str, request: LeaseRequest) -> LeaseReply:
        """Lease shards."""
        return self._call(routes.LEASE, request, name=dataset)

    def acknowledge(self, dataset: str, request: AckRequest) -> AckReply:
        """Acknowledge or return shards."""
        return self._call(routes.ACKNOWLEDGE, request, name=dataset)

    def join_sync(self, name: str, join: SyncJoin) -> SyncState:
        """Join a sync group."""
        return self._call(routes.JOIN_SYNC, join, name=name)

    def sync(self, name: str, wait: float) -> SyncState:
        """Whether all members of a sync group have joined; waits up to `wait` seconds for that."""
        return self._call(routes.SYNC, routes.WaitQuery(wait=wait), name=name)

    def open_barrier(self, name: str, join: SyncJoin) -> BarrierState:
        """Open a barrier, now and for later callers."""
        return self._call(routes.OPEN_BARRIER, join, name=name)

    def barrier(self, name: str, wait: float) -> BarrierState:
        """Whether a barrier is open; waits up to `wait` seconds for it."""
        return self._call(routes.BARRIER, routes.WaitQuery(wait=wait), name=name)

    def _call(
        self, route: routes.Route[Request, Answer], message: Request | None = None, **names: str
    ) -> Answer:
        path, body, wait = self._prefix + route.path.format(**names), None, 0.0
        if route.method != "GET":
            body = b"" if message is None else message.model_dump_json().encode()
        elif message is not None:
            query = message.model_dump(mode="json")
            path, wait = f"{path}?{urlencode(query)}", query.get("wait", 0.0)
        where = f"{route.method} {self.url.rstrip('/')}{path.removeprefix(self._prefix)}"
        try:
            response = self._connections.urlopen(
                route.method,
                path,
                body,
                self._headers,
                retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS + wait),
            )
        except urllib3.exceptions.ClosedPoolError as error:
            raise UnavailableError(f"{where}: the connection to the job's master is closed") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(f"{where}: the job's master does not answer: {error!r}") from error
        if response.status >= 400:
            raise _ERRORS.get(response.status, UnavailableError)(
                f"{where}: the job's master answered {response.status}: {_detail(response.data)}"
            )
        try:
            return route.answer.model_validate_json(response.data)
        except ValidationError as error:
            raise UnavailableError(
                f"{where}: the answer is not a {route.answer.__name__}: {error}"
            ) from error


def _detail(text: bytes) -> str:
    """The error's text: the master puts it under ``error``."""
    with contextlib.suppress(ValueError):
        body = json.loads(text)
        if isinstance(body, dict) and "error" in body:
            return str(body["error"])[:1000]
    return text.decode(errors="replace")[:1000]


class Retries:
    """Pauses between attempts, with jitter; `wait` returns early when `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._failures = 0

    def reset(self) -> None:
        """Start over after a success."""
        self._failures = 0

    def next_delay(self) -> float:
        """Seconds until the next attempt, for callers that don't block."""
        self._failures += 1
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        return Backoff(FIRST_DELAY, LONGEST_DELAY).delay(self._failures) * jitter

    def wait(self) -> bool:
        """Wait until the next attempt is due. Returns True if `stop` was set in the meantime."""
        return self._stop.wait(self.next_delay())


def call_until_answered(call: Callable[[], Result], stop: threading.Event | None = None) -> Result | None:
    """Repeat a call until the master, which may be restarting, answers.

    Args:
        call: one attempt; must be repeatable.
        stop: ends the retries when set; None: nothing ends them.

    Returns:
        The answer; None if `stop` was set before an answer arrived.

    Raises:
        EdlError: the master rejected the call.
    """
    stop = stop or threading.Event()
    retries = Retries(stop)
    complained = False
    while not stop.is_set():
        try:
            return call()
        except UnavailableError as error:
            if not complained:
                log.warning("%s; retrying", error)
                complained = True
        if retries.wait():
            break
    return None
