"""Bodies of requests and answers."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.di_job.model import MAX_REPLICAS

Data = TypeVar("Data")


class Envelope(BaseModel, Generic[Data]):
    """What every answer is, whatever its status.

    Attributes:
        success: whether the call did what was asked.
        code: 0 for success, else 1.
        message: what was done, or what is wrong and what to do.
        data: what was asked for.
    """

    success: bool
    code: Literal[0, 1]
    message: str
    data: Data | None = None


class ReplicasRequest(BaseModel):
    """How many replicas to add or to delete.

    Attributes:
        replicas: at least one.
        task: whose; default: the job's only task, else its collector.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    task: Annotated[str, Field(min_length=1, max_length=63)] | None = None


class ProfilingsRequest(BaseModel):
    """What a program reports of its training: any JSON object.

    It is merged into ``status.profilings``: a null removes a field. An object with the one field ``data`` stands for what
    is in it.
    """

    model_config = ConfigDict(extra="allow")


def profilings_of(body: bytes) -> dict[str, Any]:
    """The profilings in a request's body.

    Raises:
        InvalidError: it is no JSON object.
    """
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidError(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidError(f"the body must be a JSON object, this is {type(found).__name__}")
    if found.keys() == {"data"} and isinstance(found["data"], dict):
        return found["data"]
    return found
