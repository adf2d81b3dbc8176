"""A parameter-server cluster version: who serves, and from which checkpoint it starts."""

from pydantic import Field

from edl_workflows.protocol.message import Message


class CheckpointRef(Message):
    """A complete checkpoint: where it lies and the global step at which it was taken."""

    uri: str = Field(max_length=4096)
    step: int = Field(ge=0)


class PsMember(Message):
    """One parameter server of a cluster version: rank (its TF task index), node id and address."""

    rank: int = Field(ge=0)
    id: int = Field(ge=0)
    address: str = Field(max_length=512)


class Cluster(Message):
    """One version of the training cluster. A training process belongs to exactly one.

    A new version is made when the set of parameter servers changes or one of them was lost; workers come and go within
    a version. Every process of a version listens on the port of its parity (``names.NODE_PORTS``).

    Attributes:
        version: 1, 2, …; never used twice.
        ps: the parameter servers in rank order, ranks 0..n-1 without a gap. Empty for a job without them.
        restore: the checkpoint to start from; None only before the first checkpoint.
        chief_type, chief_id: the node that initialises, checkpoints and restores.
    """

    version: int = Field(ge=1)
    ps: list[PsMember] = Field(default_factory=list)
    restore: CheckpointRef | None = None
    chief_type: str = "worker"
    chief_id: int = 0
