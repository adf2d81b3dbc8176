"""The API server as an ASGI application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from edl_workflows.local.apiserver import auth, discovery, errors, off_loop, requests, verbs, views
from edl_workflows.local.apiserver.objects import garbage
from edl_workflows.local.apiserver.server import ApiServer
from edl_workflows.local.apiserver.storage import revisions
from edl_workflows.local.apiserver.storage.revisions import Object

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def build_app(server: ApiServer) -> Starlette:
    """Build the application. Garbage collection and the expiry of events run during its ASGI lifespan.

    Args:
        server: the parts of the API server; the caller closes its store.
    """

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok")

    async def version(_request: Request) -> Response:
        return _json(discovery.SERVER_VERSION)

    async def root(request: Request) -> Response:
        server.authenticator.identify(request.headers.get("authorization", ""))
        if request.url.path == "/openapi/v2" and not _accepts_json(request.headers.get("accept", "")):
            return Response(discovery.openapi_v2_protobuf(), media_type=discovery.OPENAPI_V2_PROTOBUF)
        return await _document(server, request.url.path)

    async def resource(request: Request) -> Response:
        identity = server.authenticator.identify(request.headers.get("authorization", ""))
        path = request.url.path
        if path.rstrip("/").count("/") <= (2 if path.startswith("/api/") else 3):
            return await _document(server, path)
        target = requests.locate_target(server.registry.catalog, path)
        verb = requests.verb_of_request(target, request.method, request.query_params)
        auth.require_access(identity, verb, target)
        return await verbs.BY_NAME[verb](server, request, target)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            chores = [
                tasks.create_task(server.collector.run()),
                tasks.create_task(garbage.expire_events(server.registry)),
            ]
            yield
            for chore in chores:
                chore.cancel()

    return Starlette(
        routes=[
            *(Route(f"/{name}", health) for name in ("healthz", "livez", "readyz")),
            Route("/version", version),
            *(Route(path, root) for path in ("/", "/api", "/apis", "/openapi/{path:path}")),
            Route("/api/{path:path}", resource, methods=_METHODS),
            Route("/apis/{path:path}", resource, methods=_METHODS),
        ],
        exception_handlers={errors.ApiError: _refuse, 404: _absent, 405: _absent, Exception: _fail},
        lifespan=lifespan,
    )


def _accepts_json(accept: str) -> bool:
    """Whether a client of ``/openapi/v2`` accepts JSON; False if it accepts only protobuf.

    Raises:
        ApiError: 406, it accepts neither.
    """
    try:
        views.negotiate(accept)
    except errors.ApiError:
        if "application/com.github.proto-openapi.spec.v2" not in accept:
            raise
        return False
    return True


def _json(obj: Mapping[str, object]) -> Response:
    return views.json_response(revisions.encode_object(dict(obj)))


async def _document(server: ApiServer, path: str) -> Response:
    if path.startswith("/openapi/"):
        # Slow to build: it contains every field of every definition.
        return await off_loop.off_loop(lambda: _describe(server, path))
    return _describe(server, path)


def _describe(server: ApiServer, path: str) -> Response:
    catalog = server.registry.catalog
    steps = path.strip("/").split("/")
    document: Object | None = None
    if steps == [""]:
        document = {
            "paths": [
                "/api",
                "/apis",
                "/healthz",
                "/livez",
                "/openapi/v2",
                "/openapi/v3",
                "/readyz",
                "/version",
            ]
        }
    elif steps == ["api"]:
        document = discovery.core_versions()
    elif steps[0] == "api":
        document = discovery.list_resources(catalog, "", steps[1])
    elif steps == ["apis"]:
        document = discovery.list_groups(catalog)
    elif steps[0] == "apis":
        document = (
            discovery.describe_group(catalog, steps[1])
            if len(steps) == 2
            else discovery.list_resources(catalog, *steps[1:3])
        )
    elif steps == ["openapi", "v2"]:
        document = discovery.openapi_v2(catalog)
    elif steps[:2] == ["openapi", "v3"]:
        document = (
            discovery.openapi_document(catalog, "/".join(steps[2:]))
            if steps[2:]
            else discovery.openapi_index(catalog)
        )
    if document is None:
        raise errors.no_such_path()
    return _json(document)


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.ApiError)
    return views.refusal_response(error)


async def _absent(_request: Request, _error: Exception) -> Response:
    return views.refusal_response(errors.no_such_path())


async def _fail(_request: Request, error: Exception) -> Response:
    # Starlette raises the error again after this response, so it is logged with its traceback.
    message = f"Internal error occurred: {type(error).__name__}: {error}"
    return views.refusal_response(errors.ApiError(500, "InternalError", message))
