"""The routes of the DI server: parse the request, call the service, wrap the answer. `guard` runs before
them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from edl_workflows import __version__
from edl_workflows.runtime.process.http_api import ErrorAnswer, add_error_handlers, body_schema, parse_body
from edl_workflows.services.di_server import messages
from edl_workflows.services.di_server.guard import CALLER, OPEN_PATH, Admission, CountAnswer, DiGuard
from edl_workflows.services.di_server.messages import (
    Envelope,
    JobId,
    ProfilingsRequest,
    ReplicasRequest,
    profilings_of,
)
from edl_workflows.services.di_server.service import DiService

MAX_WAIT = 60.0
"""Longest duration of a long poll, in seconds."""

_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The id is malformed, or of another generation of the job."},
    401: {"description": "The token is missing or not the job's."},
    404: {"description": "There is no such job."},
    405: {"description": "The path has no such method."},
    408: {"description": "The body did not arrive in time."},
    413: {"description": "The body is too large."},
    422: {"description": "The body or a parameter is invalid; the message names it."},
    429: {"description": "Too many requests: try again after Retry-After seconds."},
    500: {"description": "A bug in the server."},
    503: {"description": "The Kubernetes API can't be reached: try again after Retry-After seconds."},
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: about | {"model": Envelope[None]} for status, about in _REFUSALS.items()
}
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {
        "description": "The job is over, sized by its allocator, or changed by others meanwhile.",
        "model": Envelope[None],
    }
}
INCOMPLETE: dict[int | str, dict[str, Any]] = {
    408: {"description": "Not all replicas had an address in time.", "model": Envelope[None]}
}

_BEARER = HTTPBearer(
    auto_error=False, description="The job's token, as its pods have it in DI_TOKEN, or the administrator's."
)


def _caller(
    request: Request,
    job_id: Annotated[  # noqa: ARG001 - for the OpenAPI document; the guard has parsed it
        str, Path(description="namespace.name or namespace.name.generation", examples=["default.walk.0"])
    ],
) -> JobId:
    caller: JobId = request.scope[CALLER]
    return caller


Caller = Annotated[JobId, Depends(_caller)]
Seconds = Annotated[
    float,
    Query(ge=0, le=MAX_WAIT, description="How long to wait until all replicas have an address; 0: not."),
]


def create_app(service: DiService, admission: Admission, count: CountAnswer) -> FastAPI:
    """Build the API.

    Args:
        service: what the routes call.
        admission: rules for admitting requests.
        count: called for each answer.
    """
    app = FastAPI(
        title="edl-workflows DI server",
        version=__version__,
        openapi_url=OPEN_PATH,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_error_handlers(app, messages.error_envelope, messages.STATUSES)
    router = _routes(service)
    app.include_router(router, prefix="/v2alpha1/job/{job_id}")
    app.include_router(router, prefix="/v2alpha1/{job_id}", tags=["without /job/"])
    app.add_middleware(DiGuard, admission=admission, has_token=service.has_token, count=count)
    return app


def _routes(service: DiService) -> APIRouter:
    router = APIRouter(dependencies=[Depends(_BEARER)], responses=REFUSALS)

    @router.get("/replicas", response_model=Envelope[list[str]], responses=INCOMPLETE)
    async def get_replicas(caller: Caller, timeout: Seconds = 0.0) -> Response:  # noqa: ASYNC109
        """Addresses (host:port) of the job's replicas by global rank; "" of one that has none."""
        if timeout:
            addresses = await service.all_addresses(caller, timeout)
            if addresses.missing:
                missing = f"{addresses.missing} of {len(addresses.by_rank)} replicas have no address"
                incomplete = ErrorAnswer(408, f"{missing} after {timeout:g} s; ask again")
                return incomplete.response(messages.error_envelope)
        else:
            addresses = service.addresses(caller)
        return messages.success("successfully get replicas", list(addresses.by_rank))

    @router.post(
        "/replicas",
        response_model=Envelope[None],
        responses=CONFLICT,
        openapi_extra=body_schema(ReplicasRequest),
    )
    async def add_replicas(request: Request, caller: Caller) -> Response:
        """Add replicas to a task."""
        asked = parse_body(ReplicasRequest, await request.body())
        await run_in_threadpool(service.resize, caller, asked.task, asked.replicas)
        return messages.success("successfully add replicas")

    @router.delete(
        "/replicas",
        response_model=Envelope[None],
        responses=CONFLICT,
        openapi_extra=body_schema(ReplicasRequest),
    )
    async def delete_replicas(request: Request, caller: Caller) -> Response:
        """Take replicas away from a task: those of the highest ranks go."""
        asked = parse_body(ReplicasRequest, await request.body())
        await run_in_threadpool(service.resize, caller, asked.task, -asked.replicas)
        return messages.success("successfully delete replicas")

    @router.post(
        "/profilings",
        response_model=Envelope[None],
        responses=CONFLICT,
        openapi_extra=body_schema(ProfilingsRequest),
    )
    async def report_profilings(request: Request, caller: Caller) -> Response:
        """Merge what a program reports of its training into the job's status.profilings."""
        patch = profilings_of(await request.body())
        await run_in_threadpool(service.report, caller, patch)
        return messages.success("successfully report profilings")

    return router
