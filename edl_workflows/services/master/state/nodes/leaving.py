"""Nodes that end on purpose: their pods are deleted, evicted or preempted, or the job is suspended. Pure.

A node whose pod is told to end reports that, and asks again until it may end (`leaving_steps`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Departure:
    """The nodes that were told to end, and the last checkpoint that is made before they do.

    Attributes:
        deleted: whether the job itself is deleted.
        since: for each node that was told to end, when it first reported that, in Unix seconds.
        version: the cluster version whose processes stop for the last checkpoint; 0: none.
        begun: since when they stop.
        request: id of the last checkpoint.
        drained: the nodes that have stopped.
    """

    deleted: bool = False
    since: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    begun: float = 0.0
    request: str = ""
    drained: frozenset[str] = frozenset()

    def with_drained(self, node: str, version: int) -> "Departure":
        """The same, with a node whose process of a version has stopped between two steps."""
        return replace(self, drained=self.drained | {node}) if version == self.version else self

    def without_node(self, node: str) -> "Departure":
        """The same, with a node that was not told to end: its pod goes on with a new agent."""
        return replace(self, since={name: at for name, at in self.since.items() if name != node})

    def without_save(self) -> "Departure":
        """The same nodes, and no last checkpoint."""
        return replace(self, version=0, begun=0.0, request="", drained=frozenset())

    def shift_times(self, seconds: float) -> "Departure":
        """See `JobState.shift_times`."""
        since = {node: at + seconds for node, at in self.since.items()}
        return replace(self, since=since, begun=self.begun + seconds if self.begun else 0.0)
