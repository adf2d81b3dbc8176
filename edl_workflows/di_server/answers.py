"""Answers: every one is upstream's envelope, with the honest status."""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from edl_workflows.di_server.ids import JobIdError
from edl_workflows.di_server.messages import Envelope
from edl_workflows.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

RETRY_SECONDS = 2.0
"""After which a caller may try again what the Kubernetes API could not do."""
SHOWN = 1000
"""Characters of a message."""

_STATUS: tuple[tuple[type[EdlError], int], ...] = (
    (JobIdError, 400),
    (NotFoundError, 404),
    (ConflictError, 409),
    (InvalidError, 422),
    (ForbiddenError, 503),  # the server's own rights, not the caller's
    (UnavailableError, 503),
)


class _Json(Response):
    """JSON in ASCII: a caller's text may hold what no other encoding has."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


def success(message: str, data: Any = None) -> Response:
    """What was asked is done."""
    return _Json(Envelope(success=True, code=0, message=message, data=data).model_dump())


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """It is not."""
    envelope = Envelope[None](success=False, code=1, message=message[:SHOWN])
    return _Json(envelope.model_dump(), status, dict(headers or {}))


def later(status: int, message: str, seconds: float) -> Response:
    """It may be if it is asked again."""
    return failure(status, message, {"Retry-After": str(max(1, math.ceil(seconds)))})


def of_error(error: EdlError) -> Response:
    """What our own errors mean to a caller."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return later(status, str(error), RETRY_SECONDS) if status == 503 else failure(status, str(error))
