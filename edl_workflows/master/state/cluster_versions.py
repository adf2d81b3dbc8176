"""Cluster versions: which members train, which come next, and which may go.

The members are the parameter servers of a job that has such, the workers of a collective job (its *world*), and nobody in
any other. One `ClusterVersions` value holds it all, and each function here is one transition. The rules:

* A change has a *target*: node ids by rank. It gets a number once all of them are registered, so that their addresses
  answer; the number's parity differs from the active version's, since each of the two listens on a port of its own.
* A version becomes active when all its members are READY, in one assignment: there is no state in which half of them
  serve.
* The members of the version before are kept until the active one has made a step. `kept` names everything that must
  live; whoever is not in it may go. So no member is removed before its successor trains, whatever happens in between.
* A job without members has versions too: the model lives in its chief, and a lost chief means a new version.

Upstream's marked defects that can't happen here: a second scale-down that forgets servers of the first (there is no list
of servers to drop: it is computed), addresses that switch before all new servers run, versions that nobody compares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from edl_workflows.master.state.nodes import JobNode
from edl_workflows.protocol.cluster import CheckpointRef


class ChangeCause(StrEnum):
    """Why there is a next version."""

    INITIAL = "initial"
    PLAN = "plan"
    """A ScalePlan asked for it; it is activated by the plan, after a drain."""
    RECOVERY = "recovery"
    """A member of the active version was lost; activated as soon as it is ready."""
    ROLLBACK = "rollback"
    """A version that a plan activated did not train; back to the members before."""
    MEMBERSHIP = "membership"
    """Workers joined a collective job; they are let in between two steps, after a drain."""

    @property
    def orderly(self) -> bool:
        """The active version trains on while the next is prepared, and stops between two steps for it."""
        return self in (ChangeCause.PLAN, ChangeCause.MEMBERSHIP)


@dataclass(frozen=True)
class ClusterVersion:
    """One version.

    Attributes:
        members: node ids by rank.
        chief: id of the chief in a job without members, where it holds the model; else -1.
    """

    number: int
    members: tuple[int, ...]
    restore: CheckpointRef | None = None
    chief: int = -1


@dataclass(frozen=True)
class VersionChange:
    """The way to the next version.

    Attributes:
        target: node ids by rank; a lost one is replaced in its place.
        number: 0 until all of them are registered.
        ready: nodes whose process of that number is prepared.
        draining: processes of the active version shall stop between two steps.
        drained: those that have.
    """

    cause: ChangeCause
    target: tuple[int, ...]
    number: int = 0
    ready: tuple[str, ...] = ()
    draining: bool = False
    drained: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterVersions:
    """All about cluster versions.

    Attributes:
        last_number: the highest number that was used.
        trained: the newest version that made a step.
        previous: members by rank of the last version that trained, until the active one makes a step.
    """

    last_number: int = 0
    active: ClusterVersion | None = None
    trained: int = 0
    previous: tuple[int, ...] = ()
    change: VersionChange | None = None

    @property
    def settled(self) -> bool:
        """The active version trains and nothing is under way."""
        return self.active is not None and self.trained == self.active.number and self.change is None

    @property
    def kept(self) -> frozenset[int]:
        """Ids of the members that are needed."""
        active = self.active.members if self.active else ()
        target = self.change.target if self.change else ()
        return frozenset((*active, *self.previous, *target))

    @property
    def leaving(self) -> frozenset[int]:
        """Those of `kept` that are needed only until the next version, or the active one, trains."""
        active = self.active.members if self.active else ()
        return self.kept.difference(self.change.target if self.change else active)


def begin_change(versions: ClusterVersions, cause: ChangeCause, target: Sequence[int]) -> ClusterVersions:
    """Starts a change; one that was under way is given up."""
    return replace(versions, change=VersionChange(cause, tuple(target)))


def cancel_change(versions: ClusterVersions) -> ClusterVersions:
    """Gives the change up: training goes on in the active version."""
    return replace(versions, change=None)


def follow_replacements(versions: ClusterVersions, replacements: Mapping[int, int]) -> ClusterVersions:
    """Puts the nodes that replaced lost ones into the target, which then is prepared under a fresh number."""
    change = versions.change
    if change is None or not any(node in replacements for node in change.target):
        return versions
    target = tuple(replacements.get(node, node) for node in change.target)
    return replace(versions, change=VersionChange(change.cause, target))


def assign_number(versions: ClusterVersions, registered: frozenset[int]) -> ClusterVersions:
    """Gives the change its number once all of its members are registered."""
    change = versions.change
    if change is None or change.number or not registered.issuperset(change.target):
        return versions
    fresh = versions.last_number + 1
    if versions.active and fresh % 2 == versions.active.number % 2:
        fresh += 1  # the ports of the active version's parity are taken
    return replace(versions, last_number=fresh, change=replace(change, number=fresh))


def report_ready(versions: ClusterVersions, node: str, version: int) -> ClusterVersions:
    """A node's process of a version is prepared."""
    change = versions.change
    if change is None or change.number != version or node in change.ready:
        return versions
    return replace(versions, change=replace(change, ready=(*change.ready, node)))


def withdraw_ready(versions: ClusterVersions, node: str) -> ClusterVersions:
    """The node's process of the next version ended: that is not prepared any more."""
    change = versions.change
    if change is None or node not in change.ready:
        return versions
    return replace(
        versions, change=replace(change, ready=tuple(other for other in change.ready if other != node))
    )


def forget_reports(versions: ClusterVersions, node: str) -> ClusterVersions:
    """The node's processes are gone: what they reported does not hold any more."""
    change = versions.change
    if change is None or node not in (*change.ready, *change.drained):
        return versions
    ready = tuple(other for other in change.ready if other != node)
    drained = tuple(other for other in change.drained if other != node)
    return replace(versions, change=replace(change, ready=ready, drained=drained))


def begin_drain(versions: ClusterVersions) -> ClusterVersions:
    """Asks the active version's processes to stop between two steps."""
    assert versions.change is not None
    return replace(versions, change=replace(versions.change, draining=True))


def report_drained(versions: ClusterVersions, node: str, version: int) -> ClusterVersions:
    """A process of the active version has stopped between two steps."""
    change = versions.change
    if change is None or not change.draining or node in change.drained:
        return versions
    if versions.active is None or versions.active.number != version:
        return versions
    return replace(versions, change=replace(change, drained=(*change.drained, node)))


def members_ready(versions: ClusterVersions, node_type: str) -> bool:
    """Whether all members of the next version, nodes of this type, are prepared."""
    change = versions.change
    return bool(
        change and change.number and all(f"{node_type}-{node}" in change.ready for node in change.target)
    )


def activate_next(
    versions: ClusterVersions, restore: CheckpointRef | None, chief: int = -1
) -> ClusterVersions:
    """The next version becomes the active one; the one before stays until this one trains."""
    change = versions.change
    assert change is not None
    assert change.number
    before = versions.active
    trained = before is not None and versions.trained == before.number
    # Where the active version never trained, the members before it are still those to go back to.
    return replace(
        versions,
        active=ClusterVersion(change.number, change.target, restore, chief),
        previous=before.members if before and trained else versions.previous,
        change=None,
    )


def set_restore(versions: ClusterVersions, restore: CheckpointRef) -> ClusterVersions:
    """The active version starts from a checkpoint that its chief found."""
    assert versions.active is not None
    return replace(versions, active=replace(versions.active, restore=restore))


def report_trained(versions: ClusterVersions, version: int) -> ClusterVersions:
    """A process made a step in a version. Only the active one counts."""
    if versions.active is None or version != versions.active.number or versions.trained == version:
        return versions
    return replace(versions, trained=version, previous=())


def restored_target(nodes: Mapping[int, JobNode], members: Sequence[int]) -> tuple[int, ...]:
    """`members` with each lost one's replacement in its place, as far as there is one."""
    target = []
    for node_id in members:
        newest = node_id
        while newest in nodes and nodes[newest].replaced_by >= 0:
            newest = nodes[newest].replaced_by
        target.append(newest)
    return tuple(target)
