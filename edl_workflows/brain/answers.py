"""Answers: JSON of a message, or of a `Refusal` with the honest status."""

import json

from pydantic import BaseModel
from starlette.responses import Response

from edl_workflows.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

RETRY_SECONDS = 2
"""After which a caller may try again what the store could not do."""
SHOWN = 1_000
"""Characters of a message."""

_STATUS: tuple[tuple[type[EdlError], int], ...] = (
    (NotFoundError, 404),
    (ForbiddenError, 403),
    (ConflictError, 409),
    (InvalidError, 422),
    (UnavailableError, 503),
)


class Refusal(BaseModel):
    """Why something was not done, and what to do about it."""

    error: str


def of_message(message: BaseModel) -> Response:
    """What was asked."""
    return Response(message.model_dump_json(), media_type="application/json")


def refusal(status: int, message: str) -> Response:
    """It is not done."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None
    # In ASCII: a caller's text may hold what no other encoding has.
    body = json.dumps({"error": message[:SHOWN]})
    return Response(body, status, headers, media_type="application/json")


def of_error(error: EdlError) -> Response:
    """What our own errors mean to a caller."""
    return refusal(next((status for kind, status in _STATUS if isinstance(error, kind)), 500), str(error))
