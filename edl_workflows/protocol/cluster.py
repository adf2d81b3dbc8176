"""A cluster version: who belongs to it, and from which checkpoint it starts."""

from pydantic import Field

from edl_workflows.jobs import names
from edl_workflows.protocol.message import Message


class CheckpointRef(Message):
    """A complete checkpoint: where it lies and the global step at which it was taken."""

    uri: str = Field(max_length=4096)
    step: int = Field(ge=0)


class Member(Message):
    """One member of a cluster version: rank (its task index), node id and address."""

    rank: int = Field(ge=0)
    id: int = Field(ge=0)
    address: str = Field(max_length=512)


class Cluster(Message):
    """One version of the training cluster. A training process belongs to exactly one.

    A new version is made when its members change or one of them was lost. With parameter servers, those are the members,
    and workers come and go within a version. In a collective job (``AllreduceStrategy``) the members are the workers
    themselves: a world. Every process of a version listens on the port of its parity (``names.NODE_PORTS``).

    Attributes:
        version: 1, 2, …; never used twice.
        ps: the parameter servers in rank order, ranks 0..n-1 without a gap. Empty for a job without them.
        workers: the workers of a world in rank order, ranks 0..n-1 without a gap. Empty for a job that is not collective.
        max_workers: the most workers that a world of the job can have: the N by which the fixed global batch is split.
            0 for a job that is not collective.
        restore: the checkpoint to start from; None only before the first checkpoint.
        chief_type, chief_id: the node that initialises, checkpoints and restores; rank 0 of a world.
    """

    version: int = Field(ge=1)
    ps: list[Member] = Field(default_factory=list)
    workers: list[Member] = Field(default_factory=list)
    max_workers: int = Field(default=0, ge=0)
    restore: CheckpointRef | None = None
    chief_type: str = "worker"
    chief_id: int = 0

    @property
    def collective(self) -> bool:
        """Whether the members are the workers themselves."""
        return bool(self.workers)

    def rank_of(self, node_type: str, node_id: int) -> int | None:
        """Rank of a node among the version's members; None for a node that is none of them."""
        members = {names.PS_TYPE: self.ps, names.WORKER_TYPE: self.workers}.get(node_type, [])
        return next((member.rank for member in members if member.id == node_id), None)
