"""A cluster version: its members, and the checkpoint from which it starts."""

from pydantic import Field

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.message import Message

OWN_CHECKPOINT = "program://own-checkpoint"
"""URI that stands for the own checkpoint of a script; the master knows neither its place nor its step."""


class CheckpointRef(Message):
    """A complete checkpoint: where it is stored, and its global step."""

    uri: str = Field(max_length=4096)
    step: int = Field(ge=0)


class Member(Message):
    """One member of a cluster version: rank (its task index), node id and address.

    Attributes:
        process: the version for which the member's process was started, if the process continues from an
            earlier version with the model in memory; 0 if it is started for this version. A parameter server
            continues if a version that never trained is rolled back.
    """

    rank: int = Field(ge=0)
    id: int = Field(ge=0)
    address: str = Field(max_length=512)
    process: int = Field(default=0, ge=0)


class TrainingCluster(Message):
    """One version of the training cluster. A training process belongs to one version at a time: to the
    version for which it was started, or, if it can change its group in place, to a later version that names
    it (`Member.process`).

    A new version is formed when the members change or one of them is lost. In a job with parameter servers,
    the parameter servers are the members, and workers come and go within a version. In a collective job
    (`AllreduceStrategy`) the workers are the members, and form a training group. There is one port for even
    and one for odd version numbers; all processes of a version listen on the same one (`names.NODE_PORTS`).

    Attributes:
        version: 1, 2, …; never reused.
        ps: the parameter servers, ranks 0..n-1 in order. Empty for a job without them.
        workers: the workers of a training group, ranks 0..n-1 in order. Empty for a job that is not
            collective.
        max_workers: the most workers that a training group of the job can have: the N into which the fixed
            global batch is split. 0 for a job that is not collective.
        replica_size: number n of workers in a replica group (``spec.rendezvous.nodeUnit``), for a program in
            which the workers of ranks 0 to n-1, n to 2n-1, … hold the model together.
        restore: the checkpoint to start from; None before the first checkpoint, and if processes continue in
            place. In a job with neither parameter servers nor a group, it is the newest once the version
            trains.
        chief_type, chief_id: the node that initializes, saves and restores the model; in a training group,
            rank 0.
    """

    version: int = Field(ge=1)
    ps: list[Member] = Field(default_factory=list)
    workers: list[Member] = Field(default_factory=list)
    max_workers: int = Field(default=0, ge=0)
    replica_size: int = Field(default=1, ge=1)
    restore: CheckpointRef | None = None
    chief_type: str = "worker"
    chief_id: int = 0

    @property
    def collective(self) -> bool:
        """Whether the workers are the members."""
        return bool(self.workers)

    @property
    def in_place(self) -> bool:
        """Whether processes of an earlier version continue in this one, with the model in memory."""
        return any(member.process for member in self.workers)

    def process_of(self, node_type: str, node_id: int) -> int:
        """The version for which the node's process was started: this one, unless it continues in place."""
        members = self._members(node_type)
        return next((member.process for member in members if member.id == node_id), 0) or self.version

    def rank_of(self, node_type: str, node_id: int) -> int | None:
        """Rank of a node among the version's members; None if it is not a member."""
        return next((member.rank for member in self._members(node_type) if member.id == node_id), None)

    def _members(self, node_type: str) -> list[Member]:
        return {names.PS_TYPE: self.ps, names.WORKER_TYPE: self.workers}.get(node_type, [])
