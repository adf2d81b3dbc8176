"""The base of every message."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A value on the wire. Unknown fields are ignored, so that an older agent can talk to a newer master.

    Numbers are finite: JSON has no others, and what can't be written can't be stored.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)
