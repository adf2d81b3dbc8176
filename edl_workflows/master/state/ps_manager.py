"""Cluster versions: which parameter servers train, which come next, and which may go.

One `Versions` value holds it all, and each function here is one transition. The rules:

* A change has a *target*: node ids by rank. It gets a number once all of them are registered, so that their addresses
  answer; the number's parity differs from the active version's, since each of the two listens on a port of its own.
* A version becomes active when all its parameter servers are READY, in one assignment: there is no state in which half
  of them serve.
* The servers of the version before are kept until the active one has made a step. `kept` names everything that must
  live; whoever is not in it may go. So no server is removed before its successor trains, whatever happens in between.
* A job without parameter servers has versions too: the model lives in its chief, and a lost chief means a new version.

Upstream's marked defects that can't happen here: a second scale-down that forgets servers of the first (there is no list
of servers to drop: it is computed), addresses that switch before all new servers run, versions that nobody compares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from edl_workflows.jobs import names
from edl_workflows.jobs.scale_plan.model import NodeResource
from edl_workflows.master.state.nodes import Node, NodeRegistry
from edl_workflows.protocol.cluster import CheckpointRef


class Cause(StrEnum):
    """Why there is a next version."""

    INITIAL = "initial"
    PLAN = "plan"
    """A ScalePlan asked for it; it is activated by the plan, after a drain."""
    RECOVERY = "recovery"
    """A server of the active version was lost; activated as soon as it is ready."""
    ROLLBACK = "rollback"
    """A version that a plan activated did not train; back to the servers before."""


@dataclass(frozen=True)
class Version:
    """One version.

    Attributes:
        ps: node ids by rank.
        chief: id of the chief in a job without parameter servers, where it holds the model; else -1.
    """

    number: int
    ps: tuple[int, ...]
    restore: CheckpointRef | None = None
    chief: int = -1


@dataclass(frozen=True)
class Change:
    """The way to the next version.

    Attributes:
        target: node ids by rank; a lost one is replaced in its place.
        number: 0 until all of them are registered.
        ready: nodes whose process of that number is prepared.
        draining: processes of the active version shall stop between two steps.
        drained: those that have.
    """

    cause: Cause
    target: tuple[int, ...]
    number: int = 0
    ready: tuple[str, ...] = ()
    draining: bool = False
    drained: tuple[str, ...] = ()


@dataclass(frozen=True)
class Versions:
    """All about cluster versions.

    Attributes:
        last_number: the highest number that was used.
        trained: the newest version that made a step.
        previous: servers by rank of the last version that trained, until the active one makes a step.
    """

    last_number: int = 0
    active: Version | None = None
    trained: int = 0
    previous: tuple[int, ...] = ()
    change: Change | None = None

    @property
    def settled(self) -> bool:
        """The active version trains and nothing is under way."""
        return self.active is not None and self.trained == self.active.number and self.change is None

    @property
    def kept(self) -> frozenset[int]:
        """Ids of the parameter servers that are needed."""
        active = self.active.ps if self.active else ()
        target = self.change.target if self.change else ()
        return frozenset((*active, *self.previous, *target))


def begin(versions: Versions, cause: Cause, target: Sequence[int]) -> Versions:
    """Starts a change; one that was under way is given up."""
    return replace(versions, change=Change(cause, tuple(target)))


def cancel(versions: Versions) -> Versions:
    """Gives the change up: training goes on in the active version."""
    return replace(versions, change=None)


def follow_replacements(versions: Versions, replacements: Mapping[int, int]) -> Versions:
    """Puts the nodes that replaced lost ones into the target, which then is prepared under a fresh number."""
    change = versions.change
    if change is None or not any(node in replacements for node in change.target):
        return versions
    target = tuple(replacements.get(node, node) for node in change.target)
    return replace(versions, change=Change(change.cause, target))


def number(versions: Versions, registered: frozenset[int]) -> Versions:
    """Gives the change its number once all of its servers are registered."""
    change = versions.change
    if change is None or change.number or not registered.issuperset(change.target):
        return versions
    fresh = versions.last_number + 1
    if versions.active and fresh % 2 == versions.active.number % 2:
        fresh += 1  # the ports of the active version's parity are taken
    return replace(versions, last_number=fresh, change=replace(change, number=fresh))


def report_ready(versions: Versions, node: str, version: int) -> Versions:
    """A node's process of a version is prepared."""
    change = versions.change
    if change is None or change.number != version or node in change.ready:
        return versions
    return replace(versions, change=replace(change, ready=(*change.ready, node)))


def forget_reports(versions: Versions, node: str) -> Versions:
    """The node's processes are gone: what they reported does not hold any more."""
    change = versions.change
    if change is None or node not in (*change.ready, *change.drained):
        return versions
    ready = tuple(other for other in change.ready if other != node)
    drained = tuple(other for other in change.drained if other != node)
    return replace(versions, change=replace(change, ready=ready, drained=drained))


def drain(versions: Versions) -> Versions:
    """Asks the active version's processes to stop between two steps."""
    assert versions.change is not None
    return replace(versions, change=replace(versions.change, draining=True))


def report_drained(versions: Versions, node: str, version: int) -> Versions:
    """A process of the active version has stopped between two steps."""
    change = versions.change
    if change is None or not change.draining or node in change.drained:
        return versions
    if versions.active is None or versions.active.number != version:
        return versions
    return replace(versions, change=replace(change, drained=(*change.drained, node)))


def ps_ready(versions: Versions) -> bool:
    """Whether all servers of the next version serve."""
    change = versions.change
    return bool(
        change and change.number and all(f"{names.PS_TYPE}-{node}" in change.ready for node in change.target)
    )


def activate(versions: Versions, restore: CheckpointRef | None, chief: int = -1) -> Versions:
    """The next version becomes the active one; the one before stays until this one trains."""
    change = versions.change
    assert change is not None
    assert ps_ready(versions)
    before = versions.active
    trained = before is not None and versions.trained == before.number
    # Where the active version never trained, the servers before it are still those to go back to.
    return replace(
        versions,
        active=Version(change.number, change.target, restore, chief),
        previous=before.ps if before and trained else versions.previous,
        change=None,
    )


def report_trained(versions: Versions, version: int) -> Versions:
    """A process made a step in a version. Only the active one counts."""
    if versions.active is None or version != versions.active.number or versions.trained == version:
        return versions
    return replace(versions, trained=version, previous=())


@dataclass(frozen=True)
class Resize:
    """What a plan wants of the parameter servers.

    Attributes:
        count: how many; None keeps it.
        migrate: new size by node id.
        resource: size of servers that are added.
    """

    count: int | None = None
    migrate: Mapping[int, NodeResource] | None = None
    resource: NodeResource = field(default_factory=NodeResource)


def resize(registry: NodeRegistry, ps: Sequence[int], wanted: Resize, now: float) -> tuple[int, ...]:
    """Makes the nodes that `wanted` needs beside the present servers `ps`.

    A migrated server keeps its rank; added ones take the next ranks; those of the highest ranks are left out.

    Returns:
        The target by rank.
    """
    migrate = wanted.migrate or {}
    count = len(ps) if wanted.count is None else wanted.count
    target = []
    for rank in range(count):
        if rank >= len(ps):
            target.append(registry.add(names.PS_TYPE, rank, now, wanted.resource).id)
        elif ps[rank] in migrate:
            target.append(registry.add(names.PS_TYPE, rank, now, migrate[ps[rank]]).id)
        else:
            target.append(ps[rank])
    return tuple(target)


def initial(registry: NodeRegistry, count: int, resource: NodeResource, now: float) -> tuple[int, ...]:
    """Makes the servers of the first version."""
    return resize(registry, (), Resize(count=count, resource=resource), now)


def restored_target(nodes: Mapping[int, Node], ps: Sequence[int]) -> tuple[int, ...]:
    """`ps` with each lost server's replacement in its place, as far as there is one."""
    target = []
    for node_id in ps:
        newest = node_id
        while newest in nodes and nodes[newest].replaced_by >= 0:
            newest = nodes[newest].replaced_by
        target.append(newest)
    return tuple(target)
