"""What a training process says while it trains: progress and checkpoints."""

from pydantic import Field

from edl_workflows.protocol.message import Message
from edl_workflows.protocol.nodes import NodeRef


class StepReport(Message):
    """``POST /v1/steps``: the global step as this worker last saw it (sent at most a few times a second).

    Attributes:
        first_step_time, time: Unix seconds on the reporting machine of this process's first step in its version and of
            the newest one. The stall of a switch is measured from them.
    """

    node: NodeRef
    version: int = Field(ge=1)
    step: int = Field(ge=0)
    time: float
    first_step_time: float
    loss: float | None = None


class CheckpointBegin(Message):
    """``POST /v1/checkpoints``: the chief is about to save. The master remembers the data position *now*: all that was
    acknowledged before is in the checkpoint, so that a restore can go back to model and data together.

    Attributes:
        request: the directive's ``save`` id, or "" for a periodic checkpoint.
    """

    node: NodeRef
    version: int = Field(ge=1)
    request: str = Field(default="", max_length=128)


class CheckpointTicket(Message):
    """Answer to `CheckpointBegin`: the id to complete with."""

    id: str


class CheckpointEnd(Message):
    """``POST /v1/checkpoints/{id}``: the checkpoint is complete on storage (or failed, with the reason). Repeatable."""

    node: NodeRef
    uri: str = Field(default="", max_length=4096)
    step: int = Field(default=0, ge=0)
    error: str = Field(default="", max_length=4096)
