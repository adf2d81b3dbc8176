"""The nodes of a job; each is one pod with its agent. A status only moves forward; ids are never reused.

`replicas` and `rendezvous` decide which nodes are created or removed, `relaunch` whether a failed node is
replaced.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any

from pydantic import NonNegativeInt

from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import NodeRef, NodeType


class NodeStatus(StrEnum):
    """DLRover's node statuses. The last three are final."""

    INITIAL = "Initial"
    """The node is wanted, but has no pod yet."""
    PENDING = "Pending"
    """Its pod exists, but does not run yet."""
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"

    @property
    def final(self) -> bool:
        return self in _FINAL


class PodState(StrEnum):
    """What is known of a node's pod."""

    UNSEEN = ""
    THERE = "there"
    ENDED = "ended"
    """Its containers ended; the object still exists."""
    OUTLIVED = "outlived"
    """Its own container ended; another one still runs until the pod is removed."""
    GONE = "gone"


_FINAL = (NodeStatus.SUCCEEDED, NodeStatus.FAILED, NodeStatus.DELETED)
_ORDER = {status: place for place, status in enumerate(NodeStatus)}


class ExitReason(StrEnum):
    """Why a node ended (DLRover's NodeExitReason)."""

    SUCCEEDED = "Succeeded"
    KILLED = "Killed"
    SIGNAL = "KilledBySignal"
    """Not in DLRover, which counts it as Killed: nobody who runs the job sent the signal."""
    INIT = "InitContainerFailed"
    """Not in DLRover, which sees only a pod's first container."""
    REFUSED = "PodRefused"
    """Not in DLRover: its machine can't run the pod, and neither can another."""
    OOM = "OOMKilled"
    FATAL = "FatalError"
    HARDWARE = "HardwareError"
    UNKNOWN = "UnknownError"
    CHECKPOINT = "CheckpointFailed"
    """Not in DLRover: the last checkpoint of its training could not be saved."""
    LOST = "NodeLost"
    """Not in DLRover, which waits for the agent's heartbeats: its machine is lost."""
    NO_HEARTBEAT = "NoHeartBeat"
    PENDING_TIMEOUT = "PendingTimeout"
    PREPARE_TIMEOUT = "PrepareTimeout"
    """Not in DLRover: its agent lives, but its process did not become ready."""
    EVALUATION_TIMEOUT = "EvaluationTimeout"
    """Not in DLRover, which removes such a worker: it held an evaluation shard for longer than the data set
    allows.
    """
    ABSENT = "AbsentFromStep"
    """Not in DLRover: the other members of its training group waited for it in vain."""
    CHECK_FAILED = "CheckFailed"
    """It failed the check before training (DLRover's CheckFailure)."""


@dataclass(frozen=True)
class JobNode:
    """One node.

    Attributes:
        rank: its rank, which passes to the node that replaces it.
        resource: its size, where it differs from the template's.
        incarnation: id of its running agent; "" until the agent has registered.
        joined: Unix seconds at which this incarnation registered; 0 until then.
        since: Unix seconds at which the node was added; once its pod has been created, the time of that.
        relaunches: how many nodes of this rank preceded it, not counting replacements that used no budget.
        replaced_by: id of the node that took over its rank; -1 for none.
        given_up: why it is not replaced although it failed.
        released_at: when it was released, that is, no longer wanted (DLRover's is_released), in Unix seconds;
            0 if it was not.
        asked: whether its pod was requested.
        removal_asked: whether the removal of its pod was requested.
        waiting: whether its agent waits for the next version, because its training process ended after its
            version lost a member.
        why: reason for its size, where it differs from its predecessor's; else "".
        replacements: how many replacements of this rank there were in a row, this node included, whatever
            ended the others (`core.backoff.count_replacements`).
        not_before: Unix seconds before which its pod is not requested; 0 if it may be at once.
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
    replacements: int = 0
    not_before: float = 0.0

    def __str__(self) -> str:
        return f"{self.type}-{self.id}"

    @property
    def ref(self) -> NodeRef:
        return NodeRef(type=self.type, id=self.id)

    @property
    def released(self) -> bool:
        return self.released_at > 0

    @property
    def live(self) -> bool:
        """Whether it is wanted and has not ended."""
        return not self.status.final and not self.released

    @property
    def registered(self) -> bool:
        """Whether its agent runs and has registered."""
        return self.status is NodeStatus.RUNNING and bool(self.incarnation)

    @property
    def completed(self) -> bool:
        """Whether it succeeded and was not replaced since, as it is when training returns to a checkpoint."""
        return self.status is NodeStatus.SUCCEEDED and self.replaced_by < 0

    @property
    def lost(self) -> bool:
        """Whether it ended without success, by itself or by the master's decision."""
        return self.status in (NodeStatus.FAILED, NodeStatus.DELETED)


class _NodeLists:
    """The nodes by type, in order of their ids, until a node changes: a job may have a thousand nodes, and
    the consequences of one change read them twenty times.
    """

    def __init__(self, nodes: Mapping[tuple[str, int], JobNode]) -> None:
        self._nodes = nodes

    @cached_property
    def by_type(self) -> Mapping[str, list[JobNode]]:
        ordered = sorted(self._nodes.values(), key=lambda node: (node.type, node.id))
        return {node_type: list(nodes) for node_type, nodes in groupby(ordered, lambda node: node.type)}

    @cached_property
    def live_by_type(self) -> Mapping[str, list[JobNode]]:
        return {node_type: [node for node in nodes if node.live] for node_type, nodes in self.by_type.items()}


class NodeRegistry:
    """All nodes that matter: those that run, and ended nodes on which something still depends.

    An index of `JobNode` values. Each method either changes the index, or returns something.

    Args:
        nodes: the nodes that the previous master stored.
    """

    def __init__(self, nodes: Iterable[JobNode] = ()) -> None:
        self._nodes = {(node.type, node.id): node for node in nodes}
        self.next_ids: dict[str, int] = {}
        """Next free id by type; shared with `JobRecord.next_ids`, where it is stored."""
        self._lists = _NodeLists(self._nodes)

    def __copy__(self) -> "NodeRegistry":
        return NodeRegistry(self._nodes.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeRegistry) and self._nodes == other._nodes

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[JobNode]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, node_type: str, node_id: int) -> JobNode | None:
        """The node; None if it never existed or is forgotten."""
        return self._nodes.get((node_type, node_id))

    def find_all(self, refs: Iterable[tuple[str, int]]) -> list[JobNode]:
        """The nodes with these types and ids, without forgotten ones."""
        return [self._nodes[ref] for ref in refs if ref in self._nodes]

    def of(self, node_type: str) -> list[JobNode]:
        """All nodes of a type, by id."""
        return list(self._lists.by_type.get(node_type, ()))

    def live(self, node_type: str) -> list[JobNode]:
        """The live nodes of a type, by id."""
        return list(self._lists.live_by_type.get(node_type, ()))

    def at_rank(self, node_type: str, rank: int) -> JobNode | None:
        """The newest wanted node of a rank."""
        return next((n for n in reversed(self.of(node_type)) if n.rank == rank and not n.released), None)

    def by_pod(self, job: str, pod: str) -> JobNode | None:
        return next((n for n in self._nodes.values() if names.node_name(job, n.type, n.id) == pod), None)

    def new_nodes(
        self, node_type: str, places: Iterable[tuple[int, NodeResource]], now: float
    ) -> list[JobNode]:
        """A node for each rank and size, with the next free ids; `add` enters them."""
        first = self.next_ids.get(node_type, 0)
        return [
            JobNode(node_type, first + number, rank, now, resource=size)
            for number, (rank, size) in enumerate(places)
        ]

    def new_successor(self, node: JobNode, now: float, resource: NodeResource, relaunches: int) -> JobNode:
        """A node that can take the rank of `node`; `replace_by` enters it."""
        (successor,) = self.new_nodes(node.type, [(node.rank, resource)], now)
        return replace(successor, relaunches=relaunches)

    def add(self, *nodes: JobNode) -> None:
        for node in nodes:
            self._nodes[node.type, node.id] = node
            self.next_ids[node.type] = node.id + 1
        self._lists = _NodeLists(self._nodes)

    def replace_by(self, node: JobNode, successor: JobNode) -> None:
        """Add the successor of a node."""
        self.add(successor)
        self.change(node, replaced_by=successor.id)

    def release(self, node: JobNode, now: float) -> None:
        """Mark the node as no longer wanted: it is told to stop and is not replaced, and its pod is
        removed.
        """
        if not node.released:
            self.change(node, released_at=now, waiting=False)

    def change(self, node: JobNode, **values: Any) -> None:
        """Replace fields of a node. A status never moves back."""
        present = self._nodes[node.type, node.id]
        status = values.get("status")
        if status is not None and (present.status.final or _ORDER[status] < _ORDER[present.status]):
            del values["status"]
        self._nodes[node.type, node.id] = replace(present, **values)
        self._lists = _NodeLists(self._nodes)

    def forget(self, node: JobNode) -> None:
        self._nodes.pop((node.type, node.id), None)
        self._lists = _NodeLists(self._nodes)
