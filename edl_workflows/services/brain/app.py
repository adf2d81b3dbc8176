"""The routes of the Brain: each parses a request, calls the service and returns its response. `guard` runs
before them."""

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from edl_workflows import __version__
from edl_workflows.core.protocol import brain
from edl_workflows.runtime.process.http_api import add_error_handlers, body_schema, parse_body
from edl_workflows.services.brain.auth import Tenant, TokenFile
from edl_workflows.services.brain.guard import TENANT, BrainGuard, CountAnswer
from edl_workflows.services.brain.page import messages, queries
from edl_workflows.services.brain.page.queries import RowRange
from edl_workflows.services.brain.page.web import add_page
from edl_workflows.services.brain.service import BrainApi

MAX_SECONDS = 400 * 86_400.0
"""Longest period of the cluster's history that a request may ask for, in seconds."""


class BrainRefusal(BaseModel):
    """The JSON of every error."""

    error: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "model": BrainRefusal}
    for status, description in {
        401: "The token is missing or unknown.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "Without tokens: the Content-Type is not application/json.",
        421: "Without tokens: the Host header is not an address or name of the Brain.",
        422: "The body or a parameter is invalid; the message names it.",
        500: "A bug in the server.",
        503: "The store is unavailable or too slow, or the tenant exceeds its limits: retry after "
        "Retry-After seconds.",
    }.items()
}
FORBIDDEN: dict[int | str, dict[str, Any]] = {
    403: {"description": "The token does not admit to the job's namespace.", "model": BrainRefusal}
}
UNKNOWN: dict[int | str, dict[str, Any]] = {
    404: {"description": "The tenant has no such job.", "model": BrainRefusal}
}

TAKEN_OVER: dict[int | str, dict[str, Any]] = {
    404: {"description": "No master has taken the state over, or it was deleted.", "model": BrainRefusal},
    409: {
        "description": "Another master has taken the state over, or a newer snapshot is stored.",
        "model": BrainRefusal,
    },
}

_BEARER = HTTPBearer(auto_error=False, description="A tenant's token, or an operator's.")


def _tenant(request: Request) -> Tenant:
    tenant: Tenant = request.scope[TENANT]
    return tenant


def _page(
    limit: Annotated[int, Query(ge=1, le=messages.MAX_ROWS)] = 50,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> RowRange:
    return RowRange(limit, offset)


Caller = Annotated[Tenant, Depends(_tenant)]
Paged = Annotated[RowRange, Depends(_page)]
Search = Annotated[str, Query(max_length=253, pattern=r"^[^\x00-\x1f]*$")]


def create_app(
    service: BrainApi,
    tokens: TokenFile | None,
    count: CountAnswer,
    *,
    monitored: bool = False,
    allowed_hosts: Collection[str] = (),
) -> FastAPI:
    """Build the API.

    Args:
        service: what the routes call.
        tokens: the tenants' tokens; None: every client is admitted.
        count: called for each response.
        monitored: whether this Brain watches the cluster.
        allowed_hosts: see `BrainGuard`.
    """
    app = FastAPI(
        title="edl-workflows Brain",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_error_handlers(app)
    app.include_router(_master_routes(service), prefix="/v1")
    app.include_router(_state_routes(service), prefix="/v1")
    app.include_router(_page_routes(service, monitored=monitored), prefix="/v1")
    add_page(app)
    app.add_middleware(BrainGuard, tokens=tokens, count=count, hosts=allowed_hosts)
    return app


def _master_routes(service: BrainApi) -> APIRouter:
    router = APIRouter(dependencies=[Depends(_BEARER)], responses=REFUSALS)

    @router.post(
        "/metrics",
        response_model=brain.MetricsReceipt,
        responses=FORBIDDEN,
        openapi_extra=body_schema(brain.MetricsReport),
    )
    async def report(request: Request, caller: Caller) -> Response:
        """Store what a job's master measured. The response is sent when the report is durable. A report may
        be sent twice."""
        metrics_report = parse_body(brain.MetricsReport, await request.body())
        return _answer(await service.report(caller, metrics_report))

    @router.post(
        "/optimize",
        response_model=brain.OptimizeReply,
        responses=FORBIDDEN,
        openapi_extra=body_schema(brain.OptimizeRequest),
    )
    async def optimize(request: Request, caller: Caller) -> Response:
        """Advise on the nodes of a job."""
        asked = parse_body(brain.OptimizeRequest, await request.body())
        return _answer(await run_in_threadpool(service.optimize, caller, asked))

    @router.get(
        "/jobs/{uid}/metrics",
        response_model=brain.JobMetrics,
        responses=UNKNOWN,
        dependencies=[_reading(service)],
    )
    def metrics(uid: str, caller: Caller, newest: Annotated[int, Query(ge=1, le=5_000)] = 500) -> Response:
        """The newest stored samples of a job, oldest first."""
        return _answer(service.metrics(caller, _uid(uid), newest))

    return router


def _state_routes(service: BrainApi) -> APIRouter:
    router = APIRouter(dependencies=[Depends(_BEARER)], responses=REFUSALS | FORBIDDEN)

    @router.post(
        "/states/claim", response_model=brain.ClaimedState, openapi_extra=body_schema(brain.StateClaim)
    )
    async def claim(request: Request, caller: Caller) -> Response:
        """Take over the state of a job. Masters that have taken it over before can't write it any more."""
        state_claim = parse_body(brain.StateClaim, await request.body())
        return _answer(await service.claim_state(caller, state_claim))

    @router.post(
        "/states/write",
        response_model=brain.StateReceipt,
        responses=TAKEN_OVER,
        openapi_extra=body_schema(brain.StateWrite),
    )
    async def write(request: Request, caller: Caller) -> Response:
        """Store a snapshot of a job's state. The response is sent when the snapshot is durable."""
        state_write = parse_body(brain.StateWrite, await request.body())
        return _answer(await service.write_state(caller, state_write))

    return router


def _reading(service: BrainApi) -> Any:
    """A FastAPI dependency of read-only routes: counts the tenant's calls."""

    def admit(caller: Caller) -> None:
        service.admit_reading(caller)

    return Depends(admit)


def _page_routes(service: BrainApi, *, monitored: bool) -> APIRouter:
    router = APIRouter(dependencies=[Depends(_BEARER), _reading(service)], responses=REFUSALS)
    store, clock = service.store, service.clock

    @router.get("/cluster", response_model=messages.ClusterAnswer)
    def cluster(seconds: Annotated[float, Query(gt=0, le=MAX_SECONDS)] = 3_600.0) -> Response:
        """The cluster over the last `seconds`."""
        now = clock()
        return _answer(queries.query_cluster(store, now - seconds, now, monitored=monitored))

    @router.get("/jobs", response_model=messages.JobsAnswer)
    def jobs(caller: Caller, page: Paged, phase: Search = "", search: Search = "") -> Response:
        """The tenant's jobs, newest first."""
        answer = queries.query_jobs(store, caller.namespaces, page, clock(), phase=phase, search=search)
        return _answer(answer)

    @router.get("/jobs/{uid}", response_model=messages.JobAnswer, responses=UNKNOWN)
    def job(uid: str, caller: Caller) -> Response:
        """A job with its history."""
        return _answer(queries.query_job(store, caller.namespaces, _uid(uid), clock()))

    @router.get("/plans", response_model=messages.ChangesAnswer)
    def plans(caller: Caller, page: Paged, job: Search = "") -> Response:
        """Plans for the tenant's jobs, newest first."""
        return _answer(queries.query_plans(store, caller.namespaces, page, clock(), job=job))

    return router


def _uid(text: str) -> str:
    """Remove characters that databases reject from a uid. No job has such a uid."""
    return "".join(character for character in text[:128] if character.isprintable())


def _answer(message: BaseModel) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")
