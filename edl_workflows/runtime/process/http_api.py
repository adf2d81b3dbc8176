"""Common parts of the HTTP APIs of the master, the Brain, the DI server and the Argo plugin.

`RequestGuard` admits requests and limits their bodies; `add_error_handlers` converts errors to responses.
Each API has its own form of errors in JSON (`ErrorBody`) and its own rules of admission.
"""

import hmac
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edl_workflows.core.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.protocol.message import describe_problems
from edl_workflows.runtime.process.http import read_body, replay_body

log = structlog.get_logger(__name__)

Model = TypeVar("Model", bound=BaseModel)
Statuses = Mapping[type[EdlError], int]

RETRY_SECONDS = 2
"""Seconds in the ``Retry-After`` header of a 503."""
MAX_MESSAGE = 1_000
"""Longest error message in characters."""
MAX_PROBLEMS = 10
"""Most problems of a body that a message lists."""

_STATUSES: Statuses = {
    NotFoundError: 404,
    ForbiddenError: 403,
    ConflictError: 409,
    InvalidError: 422,
    UnavailableError: 503,
}


@dataclass(frozen=True)
class ErrorAnswer:
    """A response that says why a request failed.

    Attributes:
        kind: name of the error's class; "" if the request did not reach a route, or the error is unexpected.
    """

    status: int
    message: str
    kind: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, body: "ErrorBody") -> Response:
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status == 503 else {}
        return json_response(body(self), self.status, headers | dict(self.headers))


ErrorBody = Callable[[ErrorAnswer], Mapping[str, Any]]
"""Converts an error to the JSON of an API."""


def error_body(answer: ErrorAnswer) -> dict[str, Any]:
    return {"error": answer.message[:MAX_MESSAGE]}


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with JSON in ASCII: text from a caller may contain lone surrogates, which UTF-8 cannot
    encode."""
    text = json.dumps(content, separators=(",", ":"))
    return Response(text, status, dict(headers or {}), media_type="application/json")


def parse_body(model: type[Model], body: bytes) -> Model:
    """Parse a request body, regardless of its Content-Type, several times faster than FastAPI does.

    Raises:
        InvalidError: the body is invalid; the message names each invalid field.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        listed = "; ".join(describe_problems(error)[:MAX_PROBLEMS])
        raise InvalidError(f"the body is not a valid {model.__name__}: {listed}") from error


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads its body with `parse_body`."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def error_answer(error: Exception, statuses: Statuses | None = None) -> ErrorAnswer:
    """The response to a request that raised an error.

    Args:
        error: the exception. If it is unexpected, it is logged, and the response does not contain its text.
        statuses: HTTP statuses of this API, which take precedence over the common ones.
    """
    if isinstance(error, EdlError):
        table = [*(statuses or {}).items(), *_STATUSES.items()]
        status = next((status for kind, status in table if isinstance(error, kind)), 500)
        return ErrorAnswer(status, str(error), type(error).__name__)
    if isinstance(error, RequestValidationError):
        return ErrorAnswer(422, "; ".join(describe_problems(error)[:MAX_PROBLEMS]), InvalidError.__name__)
    if isinstance(error, HTTPException):
        return ErrorAnswer(error.status_code, str(error.detail), headers=error.headers or {})
    log.error("request failed with an unexpected error", exc_info=error)
    return ErrorAnswer(500, f"internal error: {type(error).__name__}; see the server's log")


def add_error_handlers(app: FastAPI, body: ErrorBody = error_body, statuses: Statuses | None = None) -> None:
    """Respond to every error of an application's routes with JSON; see `error_answer`."""

    async def handle(_request: Request, error: Exception) -> Response:
        return error_answer(error, statuses).response(body)

    for kind in (EdlError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


def bearer_token(scope: Scope) -> bytes:
    """The token in the header ``Authorization: Bearer``; empty if there is none."""
    scheme, _, credentials = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
    return credentials.strip() if scheme.lower() == b"bearer" else b""


def has_token(scope: Scope, expected: str) -> bool:
    """Whether a request has this token. Always False if `expected` is empty."""
    return bool(expected) and hmac.compare_digest(bearer_token(scope), expected.encode())


@dataclass(frozen=True)
class BodyLimit:
    """The largest body in bytes, and the seconds within which it must arrive."""

    size: int
    seconds: float


class RequestGuard(ABC):
    """ASGI middleware that admits requests before their bodies are read, and limits the bodies.

    The application gets a request only when its body is complete, so a client that disconnects early changes
    nothing.

    Args:
        app: the application behind it.
        limit: limit of each body.
        body: converts errors to the JSON of the API.
    """

    def __init__(self, app: ASGIApp, limit: BodyLimit, body: ErrorBody = error_body) -> None:
        self._app = app
        self._limit = limit
        self._body = body

    def is_open(self, path: str) -> bool:  # noqa: ARG002 - for subclasses
        """Whether requests to a path skip admission, limit and `record`."""
        return False

    @abstractmethod
    def admit(self, scope: Scope) -> ErrorAnswer | None:
        """Decide about a request. Return None to admit it, or the response that rejects it."""

    def record(self, scope: Scope, status: int, seconds: float) -> None:  # noqa: B027 - optional
        """Count a response, which began after `seconds`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.record(scope, message["status"], time.perf_counter() - began)
            await send(message)

        body, refusal = b"", self.admit(scope)
        try:
            if refusal is None:
                body = await read_body(scope, receive, self._limit.size, self._limit.seconds)
        except ClientDisconnect:
            return
        except (OverflowError, TimeoutError) as error:
            refusal = ErrorAnswer(413 if isinstance(error, OverflowError) else 408, str(error))
        if refusal is not None:
            await refusal.response(self._body)(scope, receive, recorded)
            return
        await self._app(scope, replay_body(body, receive), recorded)
