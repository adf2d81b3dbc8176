"""The master's HTTP API as typed calls. The only place in the agent that touches httpx.

One attempt a call: who calls decides about patience (`edl_workflows.agent.patience`).
"""

import contextlib
import threading
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from edl_workflows.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    DatasetProgress,
    LeaseReply,
    LeaseRequest,
    StreamUpdate,
)
from edl_workflows.protocol.message import Message
from edl_workflows.protocol.nodes import (
    CheckReport,
    CrashReport,
    Directive,
    ExitReport,
    ExitVerdict,
    Heartbeat,
    NodeRef,
    ProcessReport,
    Registration,
)
from edl_workflows.protocol.sync import BarrierState, SyncJoin, SyncState
from edl_workflows.protocol.training import (
    CheckpointBegin,
    CheckpointDamage,
    CheckpointEnd,
    CheckpointRestore,
    CheckpointTicket,
    ModelReport,
    ModelVerdict,
    StepReport,
)

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""An acknowledgement waits for the master's grouped write, which takes about a second."""

Answer = TypeVar("Answer", bound=Message)

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
    """Calls of one node. Thread-safe; threads share a connection pool.

    Every method raises:
        UnavailableError: no answer, or the master is in trouble: the same call may succeed later.
        ForbiddenError, NotFoundError, ConflictError, InvalidError: the master refused; the message is its own.

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
            trust_env=False,  # a proxy for the outside world has no business between a pod and its master
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls of other threads that are under way go on to their end, new ones are refused."""
        with self._lock:
            self._closed = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        # httpx forgets a connection that another thread is just opening, and leaves its socket to the garbage collector.
        with self._lock:
            idle = self._closed and not self._under_way
        if idle:
            self._http.close()

    def register(self, registration: Registration) -> Directive:
        """Say that the agent has started."""
        return self._post("/v1/nodes", registration, Directive)

    def heartbeat(self, heartbeat: Heartbeat) -> Directive:
        """Say that the node lives."""
        return self._post("/v1/nodes/heartbeat", heartbeat, Directive)

    def directive(self, node: NodeRef, after: int, wait: float) -> Directive:
        """What the master wants; waits up to `wait` seconds for something newer than revision `after`."""
        params: dict[str, str | int | float] = {
            "type": node.type,
            "id": node.id,
            "after": after,
            "wait": wait,
        }
        return self._get("/v1/directive", params, Directive, wait)

    def process(self, report: ProcessReport) -> Directive:
        """A training process reached a state."""
        return self._post("/v1/processes", report, Directive)

    def crash(self, report: CrashReport) -> Directive:
        """A training process ended while it prepared."""
        return self._post("/v1/processes/crashes", report, Directive)

    def node_check(self, report: CheckReport) -> Directive:
        """What the node measured."""
        return self._post("/v1/nodes/check", report, Directive)

    def exit(self, report: ExitReport) -> ExitVerdict:
        """The training process ended; what now?"""
        return self._post("/v1/nodes/exit", report, ExitVerdict)

    def step(self, report: StepReport) -> Directive:
        """Report progress."""
        return self._post("/v1/steps", report, Directive)

    def begin_checkpoint(self, begin: CheckpointBegin) -> CheckpointTicket:
        """Announce a checkpoint: the master remembers the data position."""
        return self._post("/v1/checkpoints", begin, CheckpointTicket)

    def end_checkpoint(self, ticket: str, end: CheckpointEnd) -> CheckpointRef:
        """Report a checkpoint complete, or failed."""
        return self._post(f"/v1/checkpoints/{ticket}", end, CheckpointRef)

    def restored_checkpoint(self, restore: CheckpointRestore) -> Directive:
        """Report what the chief found to start from."""
        return self._post("/v1/checkpoints/restored", restore, Directive)

    def report_model(self, report: ModelReport) -> ModelVerdict:
        """Report what the restored model says; may the version train?"""
        return self._post("/v1/checkpoints/model", report, ModelVerdict)

    def damaged_checkpoint(self, damage: CheckpointDamage) -> Directive:
        """Report a checkpoint that can't be restored."""
        return self._post("/v1/checkpoints/damaged", damage, Directive)

    def dataset(self, params: DatasetParams) -> DatasetProgress:
        """Register a data set."""
        return self._post("/v1/datasets", params, DatasetProgress)

    def progress(self, dataset: str) -> DatasetProgress:
        """How far a data set is."""
        return self._get(f"/v1/datasets/{dataset}", {}, DatasetProgress)

    def offsets(self, dataset: str, update: StreamUpdate) -> DatasetProgress:
        """Say how far the partitions of a stream reach now."""
        return self._post(f"/v1/datasets/{dataset}/offsets", update, DatasetProgress)

    def lease(self, dataset: str, request: LeaseRequest) -> LeaseReply:
        """Take shards."""
        return self._post(f"/v1/datasets/{dataset}/lease", request, LeaseReply)

    def acknowledge(self, dataset: str, request: AckRequest) -> AckReply:
        """Say what became of shards."""
        return self._post(f"/v1/datasets/{dataset}/ack", request, AckReply)

    def join_sync(self, name: str, join: SyncJoin) -> SyncState:
        """Join a sync group."""
        return self._post(f"/v1/sync/{name}", join, SyncState)

    def sync(self, name: str, wait: float) -> SyncState:
        """Whether all of a sync group have joined; waits up to `wait` seconds for it."""
        return self._get(f"/v1/sync/{name}", {"wait": wait}, SyncState, wait)

    def open_barrier(self, name: str, join: SyncJoin) -> BarrierState:
        """Open a barrier."""
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
