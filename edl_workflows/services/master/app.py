"""The master's HTTP API: a route enters its message into the state and answers from what is stored. It holds
no rules.

Paths, models and durability are those of `edl_workflows.core.protocol.routes`. Every request except those to
open routes carries the job's bearer token; bodies are bounded.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.types import ASGIApp, Scope

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.core.jobs.elastic_job.awaited_steps import has_passed, next_awaited
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol import routes
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.datasets import (
    AckRequest,
    DatasetName,
    DatasetParams,
    DatasetProgress,
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
from edl_workflows.core.protocol.sync import BarrierState, SyncJoin, SyncName, SyncState
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
from edl_workflows.runtime.process.http_api import (
    BodyLimit,
    ErrorAnswer,
    RequestGuard,
    add_error_handlers,
    error_body,
    has_token,
    parse_body,
)
from edl_workflows.services.master.data_calls import DataCalls
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.metrics import measure_job, render_metrics
from edl_workflows.services.master.state import messages, model_messages, training_messages, views
from edl_workflows.services.master.state.nodes import leaving_steps, standstill

MAX_BODY = 16 * 2**20
"""Bytes. The largest sensible message, 10,000 failed shards with a reason each, has about 12 MB."""
BODY_SECONDS = 30.0
"""Seconds in which a body must arrive."""
NOTHING_NEW = Directive(revision=0)
"""The answer to an agent that has the newest directive."""
OPEN_PATHS = frozenset(route.path for route in routes.ROUTES if route.open)

Handler = TypeVar("Handler", bound=Callable[..., Any])
WaitQuery = Annotated[routes.WaitQuery, Query()]
GROUPED = WriteUrgency.GROUPED


def create_app(master: Master, token: str) -> FastAPI:
    """The API of one master.

    Args:
        master: the master to serve; the caller runs its loop.
        token: the job's token, which every request must carry.
    """
    app = FastAPI(title="edl-workflows job master", version="1", docs_url=None, redoc_url=None)
    add_error_handlers(app, _error_body, {InvalidError: 400})
    server = _RouteServer(app, master)
    _dataset_routes(
        server, master
    )  # first, since routes are tried in turn, and no others are called as often
    _node_routes(server, master)
    _process_routes(server, master)
    _checkpoint_routes(server, master)
    _sync_routes(server, master)
    _info_routes(app, master)
    app.add_middleware(MasterGuard, token=token)
    return app


class _DataRoute(APIRoute):
    """A route whose function gets the request and makes the response: FastAPI's own conversion of arguments
    takes longer than all the rest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            for part in self.dependant.path_params:
                _, errors = part.validate(request.path_params[part.name], loc=("path", part.name))
                if errors:
                    raise RequestValidationError(errors)
            response: Response = await self.endpoint(request=request, **request.path_params)
            return response

        return handle


class _RouteServer:
    """Serves routes of the table by functions. The answer of a durable route waits until the change is
    stored. If the function returns None, the answer is the sender's directive.

    The directive of a large training group is long and is sent to every member, so its JSON is cached.
    """

    def __init__(self, app: FastAPI, master: Master) -> None:
        self._app = app
        self._master = master
        self._texts: dict[bool, tuple[int, bytes]] = {}

    def serve(
        self,
        route: routes.Route[Any, Any],
        urgency: WriteUrgency | None = WriteUrgency.NOW,
        *,
        consequences: bool = True,
        raw: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Decorate the function that answers a route.

        Args:
            route: a route of the table.
            urgency: how soon its change must be stored; None: it changes nothing, or the function sees to it.
            consequences: whether consequences of the change are derived.
            raw: whether the function takes the `Request` and the parts of its path, and returns a `Response`.
        """

        def decorate(function: Handler) -> Handler:
            model = None if raw or route.method == "GET" else route.request

            @functools.wraps(function)
            async def endpoint(**arguments: Any) -> Any:
                if model is not None:
                    arguments["message"] = _parse_message(model, await arguments.pop("request").body())
                answer = function(**arguments)
                if inspect.isawaitable(answer):
                    answer = await answer
                if urgency is not None:
                    change = (self._master.entered if consequences else self._master.touched)(urgency)
                    if route.durable:
                        await self._master.durable(change)
                if answer is None:
                    message = arguments["message"]
                    return self.render(self._master.directive(message.node), getattr(message, "known", -1))
                return answer if model is None or isinstance(answer, Response) else _json(answer)

            self._app.router.add_api_route(
                route.path,
                endpoint,
                methods=[route.method],
                response_model=None if raw else route.answer,
                route_class_override=_DataRoute if raw or model is not None else None,
            )
            return function

        return decorate

    def render(self, directive: Directive, known: int = -1, awaited: int = 0) -> Response:
        """The answer to an agent that has revision `known`: the directive if it is newer, else
        `NOTHING_NEW`; with the next step that somebody waits for, unless it is 0.
        """
        fresh = directive if directive.revision > known else NOTHING_NEW
        if awaited:
            receipt = StepReceipt(**dict(fresh), awaited=awaited)
            return Response(receipt.model_dump_json(), media_type="application/json")
        revision, text = self._texts.get(fresh.stop, (-1, b""))
        if revision != fresh.revision:
            text = fresh.model_dump_json().encode()
            if fresh is directive:
                self._texts[fresh.stop] = fresh.revision, text
        return Response(text, media_type="application/json")


def _node_routes(server: _RouteServer, master: Master) -> None:
    state = master.state

    @server.serve(routes.REGISTER)
    def register(message: Registration) -> None:
        messages.register_node(state, message, master.now())

    @server.serve(routes.HEARTBEAT, None)
    def heartbeat(message: Heartbeat) -> None:
        messages.record_heartbeat(state, message, master.now())

    @server.serve(routes.DIRECTIVE, None)
    async def directive(query: Annotated[routes.DirectiveQuery, Query()]) -> Response:
        node = NodeRef(type=query.type, id=query.id)
        return server.render(await master.next_directive(node, query.after, query.wait))

    @server.serve(routes.EXIT)
    async def exited(message: ExitReport) -> ExitVerdict:
        while (verdict := messages.decide_exit(state, message, master.now())) is None:
            if master.closing:
                raise UnavailableError("this master ends; the next one decides")
            await master.moved(0.5)
        return verdict

    @server.serve(routes.LEAVE, None)
    def leaves(message: LeaveReport) -> LeaveVerdict:
        leaving_steps.record_leave(state, message, master.now())
        master.entered(GROUPED)
        return leaving_steps.leave_verdict(state, message, master.now())

    @server.serve(routes.STACKS, GROUPED, consequences=False)
    def stacks(message: StackReport) -> None:
        standstill.record_stacks(state, message)

    @server.serve(routes.NODE_CHECK, GROUPED)
    def checked(message: CheckReport) -> None:
        messages.record_check_report(state, message)


def _process_routes(server: _RouteServer, master: Master) -> None:
    state = master.state

    @server.serve(routes.PROCESS)
    def process(message: ProcessReport) -> None:
        training_messages.record_process(state, message, master.now())

    @server.serve(routes.PRESENCE, None)
    def present(message: PresenceReport) -> None:
        standstill.note_sign(state, message, master.now())

    @server.serve(routes.CRASH)
    def crashed(message: CrashReport) -> None:
        messages.record_crash_report(state, message)

    @server.serve(routes.DEATH)
    def died(message: ExitReport) -> None:
        messages.record_death_report(state, message)

    @server.serve(routes.STEP, None)
    async def step(message: StepReport) -> Response:
        before = state.steps.step
        first = training_messages.record_step(state, message, master.now())
        if has_passed(before, state.steps.step, state.settings.awaited_steps):
            master.wake_effects()
        if first:
            await master.durable(master.entered(WriteUrgency.NOW))
        else:
            master.touched(WriteUrgency.LAZY)
        # A report that does not count, such as an evaluator's, must not be asked for again at once.
        awaited = next_awaited(max(message.step, state.steps.step), state.settings.awaited_steps)
        return server.render(master.directive(message.node), message.known, awaited)

    @server.serve(routes.RESULT)
    def result(message: ResultReport) -> ResultReceipt:
        return ResultReceipt(kept=messages.record_function_result(state, message))


def _checkpoint_routes(server: _RouteServer, master: Master) -> None:
    state = master.state

    @server.serve(routes.BEGIN_CHECKPOINT)
    def begin(message: CheckpointBegin) -> CheckpointTicket:
        return model_messages.begin_checkpoint(state, message, master.now()).to_message()

    @server.serve(routes.RESTORED_CHECKPOINT)
    def restored(message: CheckpointRestore) -> None:
        model_messages.record_restored_checkpoint(state, message, master.now())

    @server.serve(routes.DAMAGED_CHECKPOINT)
    def damaged(message: CheckpointDamage) -> None:
        model_messages.record_damaged_checkpoint(state, message)

    @server.serve(routes.MODEL)
    def model(message: ModelReport) -> ModelVerdict:
        return model_messages.record_model_report(state, message)

    @server.serve(routes.END_CHECKPOINT)  # after those whose paths it matches, too
    def end(ticket: str, message: CheckpointEnd) -> CheckpointRef:
        return model_messages.end_checkpoint(state, ticket, message, master.now())


def _dataset_routes(server: _RouteServer, master: Master) -> None:
    state, calls = master.state, DataCalls(master)

    @server.serve(routes.DATASET)
    def register(message: DatasetParams) -> DatasetProgress:
        return training_messages.register_dataset(state, message, master.store_use)

    @server.serve(routes.LEASE, None, raw=True)
    async def lease(name: DatasetName, request: Request) -> Response:
        reply = await calls.lease(name, parse_body(LeaseRequest, await request.body()))
        return _json(reply, exclude_defaults=True)

    @server.serve(routes.ACKNOWLEDGE, None, raw=True)
    async def acknowledge(name: DatasetName, request: Request) -> Response:
        reply = await calls.acknowledge(name, parse_body(AckRequest, await request.body()))
        return _json(reply, exclude_defaults=True)

    @server.serve(routes.OFFSETS, GROUPED, consequences=False)
    def update(name: DatasetName, message: StreamUpdate) -> DatasetProgress:
        return state.shards.update(name, message)

    @server.serve(routes.PROGRESS, None)
    def progress(name: DatasetName) -> DatasetProgress:
        return state.shards.progress(name)


def _sync_routes(server: _RouteServer, master: Master) -> None:
    state = master.state

    @server.serve(routes.JOIN_SYNC, GROUPED)
    def join(name: SyncName, message: SyncJoin) -> SyncState:
        return training_messages.join_sync_group(state, name, message)

    @server.serve(routes.SYNC, None)
    async def group(name: SyncName, query: WaitQuery) -> SyncState:
        await master.wait_until(lambda: training_messages.sync_group_state(state, name).finished, query.wait)
        return training_messages.sync_group_state(state, name)

    @server.serve(routes.OPEN_BARRIER, GROUPED)
    def open_barrier(name: SyncName) -> BarrierState:
        return training_messages.open_barrier(state, name)

    @server.serve(routes.BARRIER, None)
    async def barrier(name: SyncName, query: WaitQuery) -> BarrierState:
        await master.wait_until(lambda: training_messages.barrier_state(state, name).open, query.wait)
        return training_messages.barrier_state(state, name)


def _info_routes(app: FastAPI, master: Master) -> None:
    @app.get(routes.STATUS.path)
    async def status() -> dict[str, Any]:
        return views.status_report(master.state, master.now())

    @app.get(routes.LIVE.path)
    async def live() -> LiveFigures:
        return measure_job(master)

    @app.get(routes.HEALTH.path)
    async def healthz() -> Response:
        return Response("ok", media_type="text/plain")

    @app.get(routes.METRICS.path)
    async def metrics() -> Response:
        return Response(render_metrics(master), media_type=CONTENT_TYPE_LATEST)


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


def _parse_message(model: type[Message], body: bytes) -> Message:
    """The message, or the error that FastAPI raises about a body."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise RequestValidationError(
            [{**problem, "loc": ("body", *problem["loc"])} for problem in problems]
        ) from error


def _json(message: Message, *, exclude_defaults: bool = False) -> Response:
    text = message.model_dump_json(exclude_defaults=exclude_defaults)
    return Response(text, media_type="application/json")
