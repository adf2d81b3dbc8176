"""The base of every message."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A value on the wire. Unknown fields are ignored, so that an older agent can talk to a newer master."""

    model_config = ConfigDict(extra="ignore", frozen=True)
