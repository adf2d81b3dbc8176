"""The parts of requests to the DI server and of its answers: job ids, bodies, and the envelope of every
answer."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json
from starlette.responses import Response

from edl_workflows.core.exceptions import ForbiddenError, InvalidError
from edl_workflows.core.jobs.di_job.model import MAX_REPLICAS, DIJob
from edl_workflows.runtime.kube.resources import ObjectKey
from edl_workflows.runtime.process.http_api import MAX_MESSAGE, ErrorAnswer, Statuses, json_response

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_NUMBER = re.compile(r"^[0-9]{1,10}\Z")
_SHOWN = 200
"""Characters of a malformed id that a message repeats."""


class JobIdError(InvalidError):
    """The id is malformed, or names another generation of the job."""


@dataclass(frozen=True)
class JobId:
    """A parsed job id.

    Attributes:
        generation: the `DIJobStatus.generation` to which the caller belongs; None if the id does not contain
            it.
    """

    namespace: str
    name: str
    generation: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id.

        Raises:
            JobIdError: it is malformed; the message is upstream's.
        """
        parts = text.split(".")
        if len(parts) not in (2, 3) or not all(_LABEL.match(part) for part in parts[:2]):
            raise JobIdError(f"job id {text[:_SHOWN]!r} must be in namespace.name[.generation] format")
        if len(parts) == 2:
            return cls(parts[0], parts[1])
        if not _NUMBER.match(parts[2]):
            raise JobIdError(f"request generation {parts[2][:_SHOWN]!r} is not a valid number")
        return cls(parts[0], parts[1], int(parts[2]))

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)

    def check(self, job: DIJob) -> None:
        """Check that the caller belongs to the job's current generation.

        Raises:
            JobIdError: it belongs to an earlier one; the message is upstream's.
        """
        if self.generation is not None and self.generation != job.status.generation:
            raise JobIdError(
                f"request generation {self.generation} is not matched with job generation "
                f"{job.status.generation}"
            )


Data = TypeVar("Data")


class Envelope(BaseModel, Generic[Data]):
    """The body of every answer, whatever its status.

    Attributes:
        success: whether the call did what was asked.
        code: 0 for success, else 1.
        message: what was done, or what is wrong and what to do.
        data: the result.
    """

    success: bool
    code: Literal[0, 1]
    message: str
    data: Data | None = None


class ReplicasRequest(BaseModel):
    """How many replicas to add or delete.

    Attributes:
        replicas: at least one.
        task: of which task; default: the job's only task, otherwise its collector.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    task: Annotated[str, Field(min_length=1, max_length=63)] | None = None


class ProfilingsRequest(BaseModel):
    """What a program reports about its training: any JSON object.

    It is merged into ``status.profilings``: a null removes a field. Of an object whose only field is the
    object ``data``, the contents of ``data`` are merged.
    """

    model_config = ConfigDict(extra="allow")


def profilings_of(body: bytes) -> dict[str, Any]:
    """Parse the profilings in a request's body.

    Raises:
        InvalidError: the body is not a JSON object.
    """
    try:
        profilings = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidError(f"the body is no JSON: {error}") from error
    if not isinstance(profilings, dict):
        raise InvalidError(f"the body must be a JSON object, this is {type(profilings).__name__}")
    if profilings.keys() == {"data"} and isinstance(profilings["data"], dict):
        return profilings["data"]
    return profilings


STATUSES: Statuses = {
    JobIdError: 400,
    ForbiddenError: 503,  # the server lacks rights, not the caller
}
"""Status codes of errors for which the DI server differs from `edl_workflows.runtime.process.http_api`."""


def success(message: str, data: Any = None) -> Response:
    return json_response(Envelope(success=True, code=0, message=message, data=data).model_dump())


def error_envelope(answer: ErrorAnswer) -> dict[str, Any]:
    return Envelope[None](success=False, code=1, message=answer.message[:MAX_MESSAGE]).model_dump()


def too_many_requests(who: str, seconds: float) -> ErrorAnswer:
    """The answer 429, which tells `who` to send the next request after this many seconds."""
    retry = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return ErrorAnswer(429, f"too many requests of {who}; try again later", headers=retry)
