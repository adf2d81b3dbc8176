"""The base of every message, and descriptions of what is wrong with one."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A value on the wire. Unknown fields are ignored, so that an older agent can talk to a newer master.

    Numbers are finite, since JSON has no others.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class HasErrors(Protocol):
    """Pydantic's ValidationError, or an error with the same interface."""

    def errors(self) -> Sequence[Mapping[str, Any]]:
        """One entry a problem, each with ``loc`` and ``msg``."""
        ...


def describe_problems(error: HasErrors) -> list[str]:
    """Each problem in words, with the field's path."""
    return [f"{'.'.join(map(str, e['loc'])) or 'the document'}: {e['msg']}" for e in error.errors()]
