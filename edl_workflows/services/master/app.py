"""The master's HTTP API: routes enter messages into the state and answer from what is stored. It holds no
rules.

Every request except `/healthz` and `/metrics` carries the job's bearer token; bodies are bounded.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Scope

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetName,
    DatasetParams,
    DatasetProgress,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    StreamUpdate,
)
from edl_workflows.core.protocol.nodes import (
    CheckReport,
    CrashReport,
    Directive,
    ExitReport,
    ExitVerdict,
    Heartbeat,
    NodeRef,
    NodeType,
    PresenceReport,
    ProcessReport,
    Registration,
    StackReport,
)
from edl_workflows.core.protocol.sync import BarrierState, SyncJoin, SyncName, SyncState
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
from edl_workflows.runtime.process.http_api import (
    BodyLimit,
    ErrorAnswer,
    RequestGuard,
    add_error_handlers,
    error_body,
    has_token,
    parse_body,
)
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.metrics import render_metrics
from edl_workflows.services.master.state import goodput_steps, messages, model_messages, sync, views
from edl_workflows.services.master.state.nodes import standstill

MAX_BODY = 16 * 2**20
"""Bytes. The largest sensible message, 10,000 failed shards with a reason each, has about 12 MB."""
BODY_SECONDS = 30.0
"""Seconds in which a body must arrive."""
MAX_WAIT = 30.0
"""Longest long poll, in seconds."""
NOTHING_NEW = Directive(revision=0)
"""The answer to an agent that has the newest directive."""
OPEN_PATHS = frozenset({"/healthz", "/metrics"})

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT)]


def create_app(master: Master, token: str) -> FastAPI:
    """The API of one master.

    Args:
        master: the master to serve; the caller runs its loop.
        token: the job's token, which every request must carry.
    """
    app = FastAPI(title="edl-workflows job master", version="1", docs_url=None, redoc_url=None)
    add_error_handlers(app, _error_body, {InvalidError: 400})
    answers = _DirectiveAnswers(master)
    _node_routes(app, master, answers)
    _process_routes(app, master, answers)
    _check_routes(app, master, answers)
    _checkpoint_routes(app, master, answers)
    _dataset_routes(app, master)
    _sync_routes(app, master)
    _info_routes(app, master)
    app.add_middleware(MasterGuard, token=token)
    return app


def _node_routes(app: FastAPI, master: Master, answers: "_DirectiveAnswers") -> None:
    state = master.state

    @app.post("/v1/nodes", response_model=Directive)
    async def register(message: Registration) -> Response:
        messages.register_node(state, message, master.now())
        return await answers.once_stored(message.node)

    @app.post("/v1/nodes/heartbeat", response_model=Directive)
    async def heartbeat(message: Heartbeat) -> Response:
        messages.record_heartbeat(state, message, master.now())
        return answers.of(master.directive(message.node), message.known)

    @app.get("/v1/directive", response_model=Directive)
    async def directive(
        node_type: Annotated[NodeType, Query(alias="type")],
        node_id: Annotated[int, Query(alias="id", ge=0)],
        after: int = 0,
        wait: Wait = MAX_WAIT,
    ) -> Response:
        return answers.of(await master.next_directive(NodeRef(type=node_type, id=node_id), after, wait))

    @app.post("/v1/nodes/exit")
    async def exited(message: ExitReport) -> ExitVerdict:
        while (verdict := messages.decide_exit(state, message, master.now())) is None:
            await master.moved(0.5)
        await master.durable(master.changed(WriteUrgency.NOW))
        return verdict

    @app.post("/v1/steps", response_model=Directive)
    async def step(message: StepReport) -> Response:
        before = state.versions
        messages.record_step_report(state, message)
        state.measure_records(master.now())
        standstill.note_sign(state, message, master.now())
        if state.versions is not before:
            await master.durable(master.changed(WriteUrgency.NOW))
        else:
            master.touched(WriteUrgency.LAZY)
        return answers.of(master.directive(message.node), message.known)


def _process_routes(app: FastAPI, master: Master, answers: "_DirectiveAnswers") -> None:
    state = master.state

    @app.post("/v1/processes", response_model=Directive)
    async def process(message: ProcessReport) -> Response:
        messages.record_process_report(state, message)
        goodput_steps.count_save(state, message, master.now())
        return await answers.once_stored(message.node)

    @app.post("/v1/processes/presence", response_model=Directive)
    async def present(message: PresenceReport) -> Response:
        standstill.note_sign(state, message, master.now())
        return answers.of(master.directive(message.node), message.known)

    @app.post("/v1/processes/crashes", response_model=Directive)
    async def crashed(message: CrashReport) -> Response:
        messages.record_crash_report(state, message)
        return await answers.once_stored(message.node)

    @app.post("/v1/processes/deaths", response_model=Directive)
    async def died(message: ExitReport) -> Response:
        messages.record_death_report(state, message)
        return await answers.once_stored(message.node)

    @app.post("/v1/result")
    async def result(message: ResultReport) -> ResultReceipt:
        kept = messages.record_function_result(state, message)
        await master.durable(master.changed(WriteUrgency.NOW))
        return ResultReceipt(kept=kept)


def _check_routes(app: FastAPI, master: Master, answers: "_DirectiveAnswers") -> None:
    @app.post("/v1/nodes/stacks", response_model=Directive)
    async def stacks(message: StackReport) -> Response:
        standstill.record_stacks(master.state, message)
        master.touched(WriteUrgency.GROUPED)
        return answers.of(master.directive(message.node))

    @app.post("/v1/nodes/check", response_model=Directive)
    async def checked(message: CheckReport) -> Response:
        messages.record_check_report(master.state, message)
        return await answers.once_stored(message.node, WriteUrgency.GROUPED)


def _checkpoint_routes(app: FastAPI, master: Master, answers: "_DirectiveAnswers") -> None:
    state = master.state

    @app.post("/v1/checkpoints")
    async def begin(message: CheckpointBegin) -> CheckpointTicket:
        ticket = model_messages.begin_checkpoint(state, message, master.now())
        await master.durable(master.changed(WriteUrgency.NOW))
        position = ticket.position.model_dump(mode="json", exclude_defaults=True)
        return CheckpointTicket(id=ticket.id, position=position)

    @app.post("/v1/checkpoints/restored", response_model=Directive)
    async def restored(message: CheckpointRestore) -> Response:
        model_messages.record_restored_checkpoint(state, message, master.now())
        return await answers.once_stored(message.node)

    @app.post("/v1/checkpoints/model")
    async def model(message: ModelReport) -> ModelVerdict:
        verdict = model_messages.record_model_report(state, message)
        await master.durable(master.changed(WriteUrgency.NOW))
        return verdict

    @app.post("/v1/checkpoints/damaged", response_model=Directive)
    async def damaged(message: CheckpointDamage) -> Response:
        model_messages.record_damaged_checkpoint(state, message)
        return await answers.once_stored(message.node)

    @app.post("/v1/checkpoints/{ticket}")
    async def end(ticket: str, message: CheckpointEnd) -> CheckpointRef:
        model_messages.end_checkpoint(state, ticket, message, master.now())
        await master.durable(master.changed(WriteUrgency.NOW))
        return CheckpointRef(uri=message.uri, step=message.step)


def _dataset_routes(app: FastAPI, master: Master) -> None:
    shards = master.state.shards

    @app.post("/v1/datasets")
    async def register(message: DatasetParams) -> DatasetProgress:
        master.check_room(len(message.model_dump_json(exclude_defaults=True)))
        progress = shards.register(message)
        await master.durable(master.changed(WriteUrgency.NOW))
        return progress

    @app.post("/v1/datasets/{name}/lease")
    async def lease(name: DatasetName, request: Request) -> Response:
        # Parsed and serialized without FastAPI's own conversion, which is too slow for the data plane.
        message = parse_body(LeaseRequest, await request.body())
        node = messages.find_node(master.state, message.node)
        if node is None or not node.live or not views.may_lease(master.state, message.version):
            reply = LeaseReply(state=LeaseState.WAIT, reason="this process is not to train now")
        else:
            reply = shards.lease(name, message, master.now())
            master.touched(WriteUrgency.GROUPED)
        return _json(reply)

    @app.post("/v1/datasets/{name}/ack")
    async def acknowledge(name: DatasetName, request: Request) -> Response:
        message = parse_body(AckRequest, await request.body())
        reply: AckReply = shards.acknowledge(name, message, master.now())
        now = master.now()
        master.state.volatile.statistics.record_shards(str(message.node), reply.accepted, now)
        master.state.measure_records(now)
        await master.durable(master.touched(WriteUrgency.GROUPED))
        return _json(reply)

    @app.post("/v1/datasets/{name}/offsets")
    async def update(name: DatasetName, message: StreamUpdate) -> DatasetProgress:
        progress = shards.update(name, message)
        await master.durable(master.touched(WriteUrgency.GROUPED))
        return progress

    @app.get("/v1/datasets/{name}")
    async def progress(name: DatasetName) -> DatasetProgress:
        return shards.progress(name)


def _sync_routes(app: FastAPI, master: Master) -> None:
    state = master.state

    def running() -> list[str]:
        return [str(node) for node in state.trainers]

    async def awaited(done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and (left := deadline - time.monotonic()) > 0:
            await master.moved(left)

    @app.post("/v1/sync/{name}")
    async def join(name: SyncName, message: SyncJoin) -> SyncState:
        messages.find_node(state, message.node)
        state.sync = sync.join_group(state.sync, name, str(message.node), running())
        await master.durable(master.changed(WriteUrgency.GROUPED))
        return sync.group_state(state.sync, name, running())

    @app.get("/v1/sync/{name}")
    async def group(name: SyncName, wait: Wait = 0.0) -> SyncState:
        await awaited(lambda: sync.group_state(state.sync, name, running()).finished, wait)
        return sync.group_state(state.sync, name, running())

    @app.post("/v1/barriers/{name}")
    async def open_barrier(name: SyncName) -> BarrierState:
        state.sync = sync.open_barrier(state.sync, name)
        await master.durable(master.changed(WriteUrgency.GROUPED))
        return BarrierState(open=True)

    @app.get("/v1/barriers/{name}")
    async def barrier(name: SyncName, wait: Wait = 0.0) -> BarrierState:
        await awaited(lambda: name in state.sync.barriers, wait)
        return BarrierState(open=name in state.sync.barriers)


def _info_routes(app: FastAPI, master: Master) -> None:
    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return views.status_report(master.state, master.now())

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok", media_type="text/plain")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(render_metrics(master), media_type=CONTENT_TYPE_LATEST)


class _DirectiveAnswers:
    """Directives as JSON responses. The directive of a large training group is long and is sent to every
    member, so its JSON is cached.
    """

    def __init__(self, master: Master) -> None:
        self._master = master
        self._texts: dict[bool, tuple[int, bytes]] = {}

    async def once_stored(self, node: NodeRef, urgency: WriteUrgency = WriteUrgency.NOW) -> Response:
        """Wait until a report's change to the state is stored, then answer with the node's directive."""
        await self._master.durable(self._master.changed(urgency))
        return self.of(self._master.directive(node))

    def of(self, directive: Directive, agent_revision: int = -1) -> Response:
        """The answer to an agent that has revision `agent_revision`: the directive if it is newer, else
        `NOTHING_NEW`.
        """
        fresh = directive if directive.revision > agent_revision else NOTHING_NEW
        revision, text = self._texts.get(fresh.stop, (-1, b""))
        if revision != fresh.revision:
            text = fresh.model_dump_json().encode()
            if fresh is directive:
                self._texts[fresh.stop] = fresh.revision, text
        return Response(text, media_type="application/json")


class MasterGuard(RequestGuard):
    """Admits requests that carry the job's token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        super().__init__(app, BodyLimit(MAX_BODY, BODY_SECONDS), _error_body)
        self._token = token

    def is_open(self, path: str) -> bool:
        return path in OPEN_PATHS

    def admit(self, scope: Scope) -> ErrorAnswer | None:
        if has_token(scope, self._token):
            return None
        return ErrorAnswer(401, f"the job's token is missing or wrong; it is in {names.ENV_JOB_TOKEN}")


def _error_body(answer: ErrorAnswer) -> dict[str, Any]:
    return error_body(answer) | {"kind": answer.kind}


def _json(message: LeaseReply | AckReply) -> Response:
    return Response(message.model_dump_json(exclude_defaults=True), media_type="application/json")
