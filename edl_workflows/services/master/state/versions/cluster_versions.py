"""Cluster versions: which members train now, which will train in the next version, and which may be removed.

The members of a version are the parameter servers of a job that has them, or the workers of a collective job
(its *training group*); other jobs have versions without members. One `ClusterVersions` value holds the state;
each function is one transition. The rules:

* A change has a *target*: node ids by rank. The change gets the next version's number once all these nodes
  have registered, because only then do their addresses answer. The number is odd if the active version's is
  even, and even if it is odd: odd and even versions listen on different ports, so both can run at once.
* A version becomes active in one assignment, when all its members are READY. There is no state in which only
  some of them serve.
* The members of the previous version are kept until the active one has made a step. `kept` lists every node
  that must not be removed; any other member may be. So no member is removed before its successor has
  made a step. Parameter servers keep their processes, too, with the variables: a rollback returns to them
  (`VersionChange.processes`), and restores nothing.
* Processes that can change their group while they run continue in the next version *in place*: nothing is
  restored as long as one of them holds the model. If several members hold the model together (a *replica
  group*), they continue together or not at all, because their connections to each other do not change.
* A job without members has versions too: its model lives in the chief, and a lost chief requires a new
  version.

Three known defects of DLRover can't occur here: a second scale-down that forgets the servers of the first
(the servers to remove are computed, not listed), addresses that switch before all new servers run, and
version numbers that are never compared.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.services.master.state.nodes.registry import JobNode


class ChangeCause(StrEnum):
    INITIAL = "initial"
    PLAN = "plan"
    """A ScalePlan requested it. The plan activates the version after a drain."""
    RECOVERY = "recovery"
    """A member of the active version was lost. The next version is activated as soon as it is ready."""
    ROLLBACK = "rollback"
    """A version that a plan activated did not train; training returns to the previous members."""
    MEMBERSHIP = "membership"
    """Workers joined a collective job. They are admitted between two steps, after a drain."""

    @property
    def orderly(self) -> bool:
        """Whether the active version keeps training while the next one is prepared, and stops for the switch
        between two steps.
        """
        return self in (ChangeCause.PLAN, ChangeCause.MEMBERSHIP)


@dataclass(frozen=True)
class ClusterVersion:
    """One version.

    Attributes:
        members: node ids by rank.
        chief: id of the chief in a job without members, where the chief holds the model; else -1.
        processes: for each member by rank, the earlier version for which its process was started, if the
            process has continued in place; 0 if it was started for this version. Empty if all were.
        holders: members whose processes already held the model when the version became active.
        ended: members whose processes have ended since then.
        replica_size: number of members, with consecutive ranks, that hold the model together; 1 if each
            member holds a whole copy.
    """

    number: int
    members: tuple[int, ...]
    restore: CheckpointRef | None = None
    chief: int = -1
    processes: tuple[int, ...] = ()
    holders: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    replica_size: int = 1

    def process_of(self, node: int) -> int:
        """The version for which a member's process was started; 0 for a node that is not a member."""
        if node not in self.members:
            return 0
        return (self.processes[self.members.index(node)] if self.processes else 0) or self.number

    @property
    def member_processes(self) -> dict[int, int]:
        """The version for which each member's process was started, by node."""
        processes = self.processes or (0,) * len(self.members)
        return {node: process or self.number for node, process in zip(self.members, processes, strict=True)}

    def without(self, gone: Collection[int]) -> tuple[int, ...]:
        """The members of all replica groups that are still complete.

        Args:
            gone: members that are lost, or whose processes have ended.
        """
        lost = frozenset(gone)
        groups = cut_into_groups(self.members, self.replica_size)
        whole = [group for group in groups if lost.isdisjoint(group)]
        return tuple(node for group in whole for node in group)

    def going_on(self, target: Sequence[int]) -> tuple[int, ...]:
        """The members whose processes can continue in place in a version with the members `target`: those of
        complete replica groups that are also replica groups of `target`."""
        mine = cut_into_groups(self.without(self.ended), self.replica_size)
        target_groups = set(cut_into_groups(target, self.replica_size))
        return tuple(node for group in mine if group in target_groups for node in group)


def cut_into_groups(members: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Cut members, ordered by rank, into replica groups. The last one is incomplete if the number of members
    is not a multiple of `size`."""
    return [tuple(members[start : start + size]) for start in range(0, len(members), size)]


@dataclass(frozen=True)
class VersionChange:
    """The transition to the next version.

    Attributes:
        target: node ids by rank; a lost node is replaced at its rank.
        number: 0 until all target nodes have registered.
        ready: nodes whose process for the next version is prepared.
        draining: whether processes of the active version are asked to stop between two steps.
        drained: nodes whose process has stopped.
        in_place: whether processes of the active version continue in the next one, with the model in memory.
        processes: for each target node by rank, the earlier version for which its process was started, if all
            of them still hold the variables of the version that trained last; else empty.
    """

    cause: ChangeCause
    target: tuple[int, ...]
    number: int = 0
    ready: tuple[str, ...] = ()
    draining: bool = False
    drained: tuple[str, ...] = ()
    in_place: bool = False
    processes: tuple[int, ...] = ()


@dataclass(frozen=True)
class ClusterVersions:
    """All cluster versions of a job.

    Attributes:
        last_number: the highest number used so far.
        trained: the newest version that made a step.
        previous: members, by rank, of the last version that trained; empty once the active one has made a
            step.
        previous_processes: for each of them, the version for which its process was started; empty if one of
            these processes is gone.
    """

    last_number: int = 0
    active: ClusterVersion | None = None
    trained: int = 0
    previous: tuple[int, ...] = ()
    change: VersionChange | None = None
    previous_processes: tuple[int, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether the active version trains and no change is under way."""
        return self.active is not None and self.trained == self.active.number and self.change is None

    @property
    def holders(self) -> tuple[int, ...]:
        """Members of the active version whose processes hold the model. Replica groups in which a process has
        ended are left out."""
        if self.active is None:
            return ()
        got = self.active.members if self.trained == self.active.number else self.active.holders
        whole = frozenset(self.active.without(self.active.ended))
        return tuple(node for node in got if node in whole)

    @property
    def next_processes(self) -> tuple[int, ...]:
        """`ClusterVersion.processes` of the next version."""
        if self.change is not None and self.change.processes:
            return self.change.processes
        if self.change is None or not self.change.in_place or self.active is None:
            return ()
        go_on, former = frozenset(self.active.going_on(self.change.target)), self.active.member_processes
        return tuple(former[node] if node in go_on else 0 for node in self.change.target)

    @property
    def kept(self) -> frozenset[int]:
        """Ids of the members that must not be removed."""
        active = self.active.members if self.active else ()
        target = self.change.target if self.change else ()
        return frozenset((*active, *self.previous, *target))

    @property
    def leaving(self) -> frozenset[int]:
        """The members of `kept` that are needed only until the next version (or, without a change, the active
        one) trains.
        """
        active = self.active.members if self.active else ()
        return self.kept.difference(self.change.target if self.change else active)


def begin_change(
    versions: ClusterVersions, cause: ChangeCause, target: Sequence[int], *, in_place: bool = False
) -> ClusterVersions:
    """Begin a change, and abandon a change that is under way."""
    return replace(versions, change=VersionChange(cause, tuple(target), in_place=in_place))


def begin_return(versions: ClusterVersions, target: Sequence[int]) -> ClusterVersions:
    """Begin a rollback to the parameter servers of the version that trained last, and to the variables that
    they hold, if all of them are still there."""
    there = tuple(target) == versions.previous
    processes = versions.previous_processes if there else ()
    change = VersionChange(ChangeCause.ROLLBACK, tuple(target), processes=processes)
    return replace(versions, change=change)


def forget_server(versions: ClusterVersions, node: int) -> ClusterVersions:
    """Record that the processes of a parameter server are gone, and the variables with them."""
    if node in versions.previous:
        versions = replace(versions, previous_processes=())
    change = versions.change
    if change is not None and change.processes and node in change.target:
        versions = replace(versions, change=VersionChange(change.cause, change.target))
    return versions


def cancel_change(versions: ClusterVersions) -> ClusterVersions:
    return replace(versions, change=None)


def follow_replacements(versions: ClusterVersions, replacements: Mapping[int, int]) -> ClusterVersions:
    """Put the replacements of lost nodes into the target; the change then needs a new number."""
    change = versions.change
    if change is None or not any(node in replacements for node in change.target):
        return versions
    target = tuple(replacements.get(node, node) for node in change.target)
    return replace(versions, change=VersionChange(change.cause, target))


def assign_number(versions: ClusterVersions, registered: frozenset[int]) -> ClusterVersions:
    """Give the change its number once all of its members have registered."""
    change = versions.change
    if change is None or change.number or not registered.issuperset(change.target):
        return versions
    fresh = versions.last_number + 1
    if versions.active and fresh % 2 == versions.active.number % 2:
        fresh += 1  # the active version uses the ports of this parity
    return replace(versions, last_number=fresh, change=replace(change, number=fresh))


def report_ready(versions: ClusterVersions, node: str, version: int) -> ClusterVersions:
    change = versions.change
    if change is None or change.number != version or node in change.ready:
        return versions
    return replace(versions, change=replace(change, ready=(*change.ready, node)))


def note_survivors_ready(versions: ClusterVersions, node_type: str) -> ClusterVersions:
    """Record that processes that continue in place are ready for the next version."""
    change = versions.change
    if change is None or not change.number:
        return versions
    survivors = zip(change.target, versions.next_processes, strict=False)
    ready = frozenset(change.ready)
    fresh = [name for node, process in survivors if process and (name := f"{node_type}-{node}") not in ready]
    return replace(versions, change=replace(change, ready=(*change.ready, *fresh))) if fresh else versions


def note_ended(versions: ClusterVersions, node: int) -> ClusterVersions:
    """Record that a member's process of the active version has ended."""
    active = versions.active
    if active is None or node not in active.members or node in active.ended:
        return versions
    return replace(versions, active=replace(active, ended=(*active.ended, node)))


def withdraw_ready(versions: ClusterVersions, node: str) -> ClusterVersions:
    """Record that the process that the node had prepared for the next version ended."""
    change = versions.change
    if change is None or node not in change.ready:
        return versions
    return replace(
        versions, change=replace(change, ready=tuple(other for other in change.ready if other != node))
    )


def forget_reports(versions: ClusterVersions, node: str) -> ClusterVersions:
    """Remove the reports of a node's processes, because the processes are gone."""
    change = versions.change
    if change is None or node not in (*change.ready, *change.drained):
        return versions
    ready = tuple(other for other in change.ready if other != node)
    drained = tuple(other for other in change.drained if other != node)
    return replace(versions, change=replace(change, ready=ready, drained=drained))


def begin_drain(versions: ClusterVersions) -> ClusterVersions:
    assert versions.change is not None
    return replace(versions, change=replace(versions.change, draining=True))


def report_drained(versions: ClusterVersions, node: str, version: int) -> ClusterVersions:
    change = versions.change
    if change is None or not change.draining or node in change.drained:
        return versions
    if versions.active is None or versions.active.number != version:
        return versions
    return replace(versions, change=replace(change, drained=(*change.drained, node)))


def members_ready(versions: ClusterVersions, node_type: str) -> bool:
    """Whether all members of the next version are prepared; they are nodes of type `node_type`."""
    change = versions.change
    if change is None or not change.number or len(change.ready) < len(change.target):
        return False
    return frozenset(change.ready).issuperset(f"{node_type}-{node}" for node in change.target)


def activate_next(
    versions: ClusterVersions, restore: CheckpointRef | None, chief: int = -1, replica_size: int = 1
) -> ClusterVersions:
    """Make the next version the active one; the previous members are kept until it trains."""
    change = versions.change
    assert change is not None
    assert change.number
    before = versions.active
    trained = before is not None and versions.trained == before.number
    processes = versions.next_processes
    go_on = {node for node, process in zip(change.target, processes, strict=False) if process}
    fresh = ClusterVersion(
        change.number,
        change.target,
        restore,
        chief,
        processes,
        holders=tuple(node for node in versions.holders if node in go_on),
        replica_size=replica_size,
    )
    # If the active version never trained, a rollback still returns to the members of the version before it.
    return replace(
        versions,
        active=fresh,
        previous=before.members if before and trained else versions.previous,
        previous_processes=tuple(before.member_processes.values())
        if before and trained
        else versions.previous_processes,
        change=None,
    )


def set_restore(versions: ClusterVersions, restore: CheckpointRef) -> ClusterVersions:
    """Record that the active version starts from a checkpoint that its chief found."""
    assert versions.active is not None
    return replace(versions, active=replace(versions.active, restore=restore))


def report_trained(versions: ClusterVersions, version: int) -> ClusterVersions:
    """Record that a process made a step in a version. Only the active version counts."""
    if versions.active is None or version != versions.active.number or versions.trained == version:
        return versions
    return replace(versions, trained=version, previous=(), previous_processes=())


def restored_target(nodes: Mapping[int, JobNode], members: Sequence[int]) -> tuple[int, ...]:
    """`members`, with each lost node replaced by its newest replacement if it has one."""
    target = []
    for node_id in members:
        newest = node_id
        while newest in nodes and nodes[newest].replaced_by >= 0:
            newest = nodes[newest].replaced_by
        target.append(newest)
    return tuple(target)
