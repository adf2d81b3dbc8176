"""Answers of the DI server: upstream's envelope, with an HTTP status that matches it."""

import math
from typing import Any

from starlette.responses import Response

from edl_workflows.di_server.ids import JobIdError
from edl_workflows.di_server.messages import Envelope
from edl_workflows.exceptions import ForbiddenError
from edl_workflows.process.http_api import MAX_MESSAGE, ErrorAnswer, Statuses, json_response

STATUSES: Statuses = {
    JobIdError: 400,
    ForbiddenError: 503,  # the server lacks rights, not the caller
}
"""Where the DI server differs from `edl_workflows.process.http_api`."""


def success(message: str, data: Any = None) -> Response:
    return json_response(Envelope(success=True, code=0, message=message, data=data).model_dump())


def error_envelope(answer: ErrorAnswer) -> dict[str, Any]:
    return Envelope[None](success=False, code=1, message=answer.message[:MAX_MESSAGE]).model_dump()


def too_many_requests(who: str, seconds: float) -> ErrorAnswer:
    """429: `who` may send the next request after so many seconds."""
    retry = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return ErrorAnswer(429, f"too many requests of {who}; try again later", headers=retry)
