"""The check of nodes before training: who measures with whom, and what was measured."""

from pydantic import Field

from edl_workflows.protocol.message import Message
from edl_workflows.protocol.nodes import NodeRef


class CheckMember(Message):
    """A node of a group, and where it listens for the others of it."""

    node: NodeRef
    address: str = Field(max_length=512)


class CheckRound(Message):
    """One round, part of the directive: each group measures its machines, and the way between them, by itself.

    Attributes:
        number: never used twice in a job.
        groups: nodes that measure together. The first of a group listens, the others come to it.
        seconds: after which a group gives up.
    """

    number: int = Field(ge=1)
    groups: list[list[CheckMember]]
    seconds: float = Field(gt=0, le=86_400)


class CheckReport(Message):
    """``POST /v1/nodes/check``: what a node measured in a round. Repeatable.

    Attributes:
        seconds: for its work and its part of the exchange.
        error: why it could not; "" if it could.
    """

    node: NodeRef
    round: int = Field(ge=1)
    seconds: float = Field(default=0.0, ge=0, le=1e6)
    error: str = Field(default="", max_length=1024)
