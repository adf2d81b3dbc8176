"""The master's HTTP API as typed calls. The only place in the agent that touches httpx.

Each method makes one attempt; `call_until_answered` retries.
"""

import contextlib
import logging
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from edl_workflows.core.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
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
    StepReport,
)

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""Must be longer than the master's grouped write, which takes about a second: an acknowledgement waits for
it."""

FIRST_DELAY = 0.1
"""Seconds: a brief failure should cost little, even during a switch of versions."""
LONGEST_DELAY = 3.0
"""Seconds; limits the load that the nodes of a large job put on a master that restarts."""

Result = TypeVar("Result")
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
        UnavailableError: the master did not answer, or failed. The same call may succeed later.
        ForbiddenError, NotFoundError, ConflictError, InvalidError: the master rejected the call, with its own
            message.

    Args:
        url: base URL.
        token: bearer token of the job.
        transport: for tests.
    """

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._under_way = 0
        self._closed = False
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,  # no proxy between a pod and its master
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Running calls of other threads finish; new calls are rejected."""
        with self._lock:
            self._closed = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        # If closed earlier, httpx would leak a connection that another thread is just opening.
        with self._lock:
            idle = self._closed and not self._under_way
        if idle:
            self._http.close()

    def register(self, registration: Registration) -> Directive:
        """Register the node when the agent has started."""
        return self._post("/v1/nodes", registration, Directive)

    def heartbeat(self, heartbeat: Heartbeat) -> Directive:
        """Report that the node is alive."""
        return self._post("/v1/nodes/heartbeat", heartbeat, Directive)

    def directive(self, node: NodeRef, after: int, wait: float) -> Directive:
        """The node's directive; waits up to `wait` seconds for one that is newer than revision `after`."""
        params: dict[str, str | int | float] = {
            "type": node.type,
            "id": node.id,
            "after": after,
            "wait": wait,
        }
        return self._get("/v1/directive", params, Directive, wait)

    def process(self, report: ProcessReport) -> Directive:
        """Report that a training process reached a state."""
        return self._post("/v1/processes", report, Directive)

    def died(self, report: ExitReport) -> Directive:
        """Report at once that the node's training process has ended."""
        return self._post("/v1/processes/deaths", report, Directive)

    def presence(self, report: PresenceReport) -> Directive:
        """Report that a training process is alive, and whether it waits for other members."""
        return self._post("/v1/processes/presence", report, Directive)

    def crash(self, report: CrashReport) -> Directive:
        """Report that a training process exited while preparing."""
        return self._post("/v1/processes/crashes", report, Directive)

    def stacks(self, report: StackReport) -> Directive:
        """Report the stacks of the node's training process."""
        return self._post("/v1/nodes/stacks", report, Directive)

    def node_check(self, report: CheckReport) -> Directive:
        """Report the measurement of a node check."""
        return self._post("/v1/nodes/check", report, Directive)

    def exit(self, report: ExitReport) -> ExitVerdict:
        """Report the exit of the training process; the answer says whether to wait for the next version."""
        return self._post("/v1/nodes/exit", report, ExitVerdict)

    def step(self, report: StepReport) -> Directive:
        """Report the newest training step."""
        return self._post("/v1/steps", report, Directive)

    def result(self, report: ResultReport) -> ResultReceipt:
        """Report what the training function returned."""
        return self._post("/v1/result", report, ResultReceipt)

    def begin_checkpoint(self, begin: CheckpointBegin) -> CheckpointTicket:
        """Announce a checkpoint; the master records the data position."""
        return self._post("/v1/checkpoints", begin, CheckpointTicket)

    def end_checkpoint(self, ticket: str, end: CheckpointEnd) -> CheckpointRef:
        """Report a checkpoint complete, or failed."""
        return self._post(f"/v1/checkpoints/{ticket}", end, CheckpointRef)

    def restored_checkpoint(self, restore: CheckpointRestore) -> Directive:
        """Report the checkpoint that the chief starts from."""
        return self._post("/v1/checkpoints/restored", restore, Directive)

    def report_model(self, report: ModelReport) -> ModelVerdict:
        """Report the evaluation of the restored model; the answer says whether the version may train."""
        return self._post("/v1/checkpoints/model", report, ModelVerdict)

    def damaged_checkpoint(self, damage: CheckpointDamage) -> Directive:
        """Report a checkpoint that can't be restored."""
        return self._post("/v1/checkpoints/damaged", damage, Directive)

    def dataset(self, params: DatasetParams) -> DatasetProgress:
        """Register a data set."""
        return self._post("/v1/datasets", params, DatasetProgress)

    def progress(self, dataset: str) -> DatasetProgress:
        """Get the progress of a data set."""
        return self._get(f"/v1/datasets/{dataset}", {}, DatasetProgress)

    def offsets(self, dataset: str, update: StreamUpdate) -> DatasetProgress:
        """Report the current end offsets of a stream's partitions."""
        return self._post(f"/v1/datasets/{dataset}/offsets", update, DatasetProgress)

    def lease(self, dataset: str, request: LeaseRequest) -> LeaseReply:
        """Lease shards."""
        return self._post(f"/v1/datasets/{dataset}/lease", request, LeaseReply)

    def acknowledge(self, dataset: str, request: AckRequest) -> AckReply:
        """Acknowledge or return shards."""
        return self._post(f"/v1/datasets/{dataset}/ack", request, AckReply)

    def join_sync(self, name: str, join: SyncJoin) -> SyncState:
        """Join a sync group."""
        return self._post(f"/v1/sync/{name}", join, SyncState)

    def sync(self, name: str, wait: float) -> SyncState:
        """Whether all members of a sync group have joined; waits up to `wait` seconds for that."""
        return self._get(f"/v1/sync/{name}", {"wait": wait}, SyncState, wait)

    def open_barrier(self, name: str, join: SyncJoin) -> BarrierState:
        """Open a barrier, now and for later callers."""
        return self._post(f"/v1/barriers/{name}", join, BarrierState)

    def barrier(self, name: str, wait: float) -> BarrierState:
        """Whether a barrier is open; waits up to `wait` seconds for it."""
        return self._get(f"/v1/barriers/{name}", {"wait": wait}, BarrierState, wait)

    def _post(self, path: str, body: Message, answer: type[Answer]) -> Answer:
        request = self._http.build_request(
            "POST", path, content=body.model_dump_json(), headers={"Content-Type": "application/json"}
        )
        return self._send(request, answer)

    def _get(
        self, path: str, params: dict[str, str | int | float], answer: type[Answer], wait: float = 0.0
    ) -> Answer:
        timeout = httpx.Timeout(ANSWER_SECONDS + wait, connect=CONNECT_SECONDS)
        return self._send(self._http.build_request("GET", path, params=params, timeout=timeout), answer)

    def _send(self, request: httpx.Request, answer: type[Answer]) -> Answer:
        where = f"{request.method} {request.url}"
        with self._lock:
            if self._closed:
                raise UnavailableError(f"{where}: the connection to the job's master is closed")
            self._under_way += 1
        try:
            response = self._http.send(request)
        except httpx.HTTPError as error:
            raise UnavailableError(f"{where}: the job's master does not answer: {error!r}") from error
        finally:
            with self._lock:
                self._under_way -= 1
            self._close_when_idle()
        if response.is_error:
            raise _ERRORS.get(response.status_code, UnavailableError)(
                f"{where}: the job's master answered {response.status_code}: {_detail(response)}"
            )
        try:
            return TypeAdapter(answer).validate_json(response.content)
        except ValidationError as error:
            raise UnavailableError(f"{where}: the answer is not a {answer.__name__}: {error}") from error


def _detail(response: httpx.Response) -> str:
    """The error's text: the master puts it under ``error``."""
    with contextlib.suppress(ValueError):
        body = response.json()
        if isinstance(body, dict) and "error" in body:
            return str(body["error"])[:1000]
    return response.text[:1000]


class BackOff:
    """Exponential back-off with jitter; `wait` returns early when `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._delay = FIRST_DELAY

    def reset(self) -> None:
        """Start over after a success."""
        self._delay = FIRST_DELAY

    def next_delay(self) -> float:
        """Seconds until the next attempt, for callers that don't block."""
        delay = self._delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._delay = min(LONGEST_DELAY, self._delay * 2)
        return delay

    def wait(self) -> bool:
        """Wait until the next attempt is due. Returns True if `stop` was set in the meantime."""
        return self._stop.wait(self.next_delay())


def call_until_answered(call: Callable[[], Result], stop: threading.Event) -> Result | None:
    """Repeat a call until the master, which may be restarting, answers.

    Args:
        call: one attempt; must be repeatable.
        stop: ends the retries when set.

    Returns:
        The answer; None if `stop` was set before an answer arrived.

    Raises:
        EdlError: the master rejected the call.
    """
    back_off = BackOff(stop)
    complained = False
    while not stop.is_set():
        try:
            return call()
        except UnavailableError as error:
            if not complained:
                log.warning("%s; retrying", error)
                complained = True
        if back_off.wait():
            break
    return None
