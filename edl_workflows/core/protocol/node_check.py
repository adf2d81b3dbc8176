"""The check of nodes before training: which nodes measure together. They answer with
`protocol.nodes.CheckReport`.
"""

from pydantic import Field

from edl_workflows.core.protocol.message import Message


class CheckMember(Message):
    """A node of a group, such as `worker-3`, and the address on which it listens for the others."""

    node: str = Field(max_length=64)
    address: str = Field(max_length=512)


class CheckRound(Message):
    """One round, part of the directive: each group measures its machines and their connection.

    Attributes:
        number: number of the round; never reused within a job.
        groups: nodes that measure together. The first node of a group listens, and the others connect to it.
        seconds: time after which a group gives up.
    """

    number: int = Field(ge=1)
    groups: list[list[CheckMember]]
    seconds: float = Field(gt=0, le=86_400)
