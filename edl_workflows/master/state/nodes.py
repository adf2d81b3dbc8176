"""The nodes of a job: one pod with its agent each. Statuses flow forward only; ids are never used twice.

Who decides that a node shall be made or go: `worker_manager`, `ps_manager`, `world_steps`. Why one is replaced: `relaunch`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pydantic import NonNegativeInt

from edl_workflows.jobs import names
from edl_workflows.jobs.scale_plan.model import NodeResource
from edl_workflows.protocol.nodes import NodeRef, NodeType


class NodeStatus(StrEnum):
    """Upstream's node statuses. The last three are final."""

    INITIAL = "Initial"
    """Decided; no pod yet."""
    PENDING = "Pending"
    """Its pod is there and does not run."""
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"

    @property
    def final(self) -> bool:
        """Whether the node has ended."""
        return self in (NodeStatus.SUCCEEDED, NodeStatus.FAILED, NodeStatus.DELETED)


class PodState(StrEnum):
    """What is known of a node's pod."""

    UNSEEN = ""
    THERE = "there"
    ENDED = "ended"
    """Its containers ended; the object is still there."""
    GONE = "gone"


_ORDER = {status: place for place, status in enumerate(NodeStatus)}


class ExitReason(StrEnum):
    """Why a node ended (upstream's NodeExitReason)."""

    SUCCEEDED = "Succeeded"
    KILLED = "Killed"
    OOM = "OOMKilled"
    FATAL = "FatalError"
    HARDWARE = "HardwareError"
    UNKNOWN = "UnknownError"
    CHECKPOINT = "CheckpointFailed"
    """Ours: the last checkpoint of its training could not be saved."""
    NO_HEARTBEAT = "NoHeartBeat"
    PENDING_TIMEOUT = "PendingTimeout"
    PREPARE_TIMEOUT = "PrepareTimeout"
    """Ours: its agent lives, but its process does not get ready."""
    EVALUATION_TIMEOUT = "EvaluationTimeout"
    """Ours: it held a shard for evaluation for longer than the data set allows (upstream removes such a worker)."""
    CHECK_FAILED = "CheckFailed"
    """It failed the check before training (upstream's CheckFailure)."""


@dataclass(frozen=True)
class JobNode:
    """One node.

    Attributes:
        rank: kept by the node that replaces it.
        resource: its size where it differs from the template's.
        incarnation: of its agent; "" until it registered.
        joined: Unix seconds at which this incarnation registered; 0 until then.
        since: Unix seconds at which it was decided, then at which its pod was made.
        relaunches: how many nodes of this rank it follows, without those that needed no budget.
        replaced_by: id of the node that took its rank; -1 for none.
        given_up: why it is not replaced although it failed.
        released_at: it is not wanted any more since then; 0 while it is (upstream's is_released).
        asked: its pod was asked for.
        removal_asked: its pod's removal was asked for.
        waiting: its training process ended because a member of its version was lost; the agent waits for the next version.
        why: the reason for its size, where it is another than that of the node before; "" for any other.
    """

    type: NodeType
    id: NonNegativeInt
    rank: int
    since: float
    status: NodeStatus = NodeStatus.INITIAL
    resource: NodeResource = field(default_factory=NodeResource)
    incarnation: str = ""
    joined: float = 0.0
    relaunches: int = 0
    replaced_by: int = -1
    exit_reason: ExitReason | None = None
    exit_code: int | None = None
    message: str = ""
    given_up: str = ""
    released_at: float = 0.0
    waiting: bool = False
    pod: PodState = PodState.UNSEEN
    asked: bool = False
    removal_asked: bool = False
    why: str = ""

    def __str__(self) -> str:
        return f"{self.type}-{self.id}"

    @property
    def ref(self) -> NodeRef:
        """Its name on the wire."""
        return NodeRef(type=self.type, id=self.id)

    @property
    def released(self) -> bool:
        """Not wanted any more."""
        return self.released_at > 0

    @property
    def live(self) -> bool:
        """It counts: wanted, and not ended."""
        return not self.status.final and not self.released

    @property
    def registered(self) -> bool:
        """Its agent runs and talks to us."""
        return self.status is NodeStatus.RUNNING and bool(self.incarnation)

    @property
    def lost(self) -> bool:
        """It ended, or shall, without success."""
        return self.status in (NodeStatus.FAILED, NodeStatus.DELETED)


class NodeRegistry:
    """All nodes that matter: those that run, and those whose end still has a consequence.

    Args:
        nodes: what a former master stored.
        next_ids: next free id by type.
    """

    def __init__(self, nodes: Iterable[JobNode] = (), next_ids: dict[str, int] | None = None) -> None:
        self._nodes = {(node.type, node.id): node for node in nodes}
        self.next_ids = dict(next_ids or {})

    def __iter__(self) -> Iterator[JobNode]:
        return iter(list(self._nodes.values()))

    def find(self, node_type: str, node_id: int) -> JobNode | None:
        """The node, or None if it never was or is forgotten."""
        return self._nodes.get((node_type, node_id))

    def of(self, node_type: str) -> list[JobNode]:
        """All nodes of a type, by id."""
        return sorted((n for n in self._nodes.values() if n.type == node_type), key=lambda n: n.id)

    def live(self, node_type: str) -> list[JobNode]:
        """Those that are wanted and have not ended, by id."""
        return [node for node in self.of(node_type) if node.live]

    def at_rank(self, node_type: str, rank: int) -> JobNode | None:
        """The newest wanted node of a rank."""
        return next((n for n in reversed(self.of(node_type)) if n.rank == rank and not n.released), None)

    def by_pod(self, job: str, pod: str) -> JobNode | None:
        """The node whose pod has this name."""
        return next((n for n in self._nodes.values() if names.node_name(job, n.type, n.id) == pod), None)

    def add(
        self, node_type: str, rank: int, now: float, resource: NodeResource, relaunches: int = 0
    ) -> JobNode:
        """A new node with the next free id."""
        node_id = self.next_ids.get(node_type, 0)
        self.next_ids[node_type] = node_id + 1
        node = JobNode(node_type, node_id, rank, now, resource=resource, relaunches=relaunches)
        self._nodes[node_type, node_id] = node
        return node

    def change(self, node: JobNode, **values: Any) -> JobNode:
        """Replaces fields of a node. A status never goes back: a later one stays."""
        status = values.get("status")
        if status is not None and (node.status.final or _ORDER[status] < _ORDER[node.status]):
            del values["status"]
        changed = replace(self._nodes[node.type, node.id], **values)
        self._nodes[node.type, node.id] = changed
        return changed

    def forget(self, node: JobNode) -> None:
        """Drops a node whose end has no consequence any more."""
        self._nodes.pop((node.type, node.id), None)
