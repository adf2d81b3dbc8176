"""The base class of every message, and descriptions of a message's errors."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A JSON message. Unknown fields are ignored, so that an older agent can talk to a newer master.

    Numbers must be finite, since JSON can't represent others.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class HasErrors(Protocol):
    """Pydantic's ValidationError, or an error with the same interface."""

    def errors(self) -> Sequence[Mapping[str, Any]]:
        """One entry per problem, each with ``loc`` and ``msg``."""
        ...


def describe_problems(error: HasErrors) -> list[str]:
    """Each problem in words, with the field's path."""
    return [f"{'.'.join(map(str, e['loc'])) or 'the document'}: {e['msg']}" for e in error.errors()]
