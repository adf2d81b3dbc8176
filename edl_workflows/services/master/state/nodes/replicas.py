"""Adds and releases the nodes of a role until it has as many as wanted. Pure transitions of the registry.

Workers, chief and evaluators can be added and removed within a cluster version. Parameter servers, and the
workers of a collective job, are members of a version: they are removed only when `cluster_versions` no longer
keeps them.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.state.nodes.registry import JobNode, NodeRegistry, NodeStatus
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.versions.cluster_versions import ClusterVersions


def scale_role(
    registry: NodeRegistry,
    settings: JobSettings,
    node_type: str,
    count: int,
    size: NodeResource,
    now: float,
    versions: ClusterVersions | None = None,
) -> list[JobNode]:
    """Add or release nodes until `count` ranks are taken. A second call changes nothing.

    Scaling up takes the lowest free ranks. A worker that succeeded, or was given up, keeps its rank and is
    not created again (DLRover creates it again). Scaling down first releases nodes whose rank a newer node
    also has, then those with the highest ids, and critical nodes last.

    Args:
        registry: the nodes.
        settings: of the job.
        node_type: role.
        count: number of nodes.
        size: of new nodes.
        now: Unix seconds.
        versions: the job's versions, if nodes of this role are members of them; members that must be kept are
            not released.

    Returns:
        The nodes that were released.
    """
    taken = taken_ranks(registry, node_type)
    for rank in free_ranks(taken, count - max(len(taken), len(registry.live(node_type)))):
        registry.add(node_type, rank, now, size)
    kept, leaving = (versions.kept, versions.leaving) if versions else (frozenset(), frozenset())
    live = registry.live(node_type)
    too_many = len([node for node in live if node.id not in leaving]) - count
    newest = {node.rank: node.id for node in live}
    # The chief and other critical nodes are released last.
    line = sorted(
        (node for node in live if node.id not in kept),
        key=lambda node: (settings.critical(node.type, node.rank), node.id == newest[node.rank], -node.id),
    )
    return [release_node(registry, node, now) for node in line[: max(0, too_many)]]


def release_node(registry: NodeRegistry, node: JobNode, now: float) -> JobNode:
    """Mark the node as no longer wanted: it is told to stop and is not replaced, and its pod is removed."""
    return node if node.released else registry.change(node, released_at=now, waiting=False)


def replace_nodes(registry: NodeRegistry, sizes: Iterable[tuple[JobNode, NodeResource]], now: float) -> None:
    """Replace each node by a new one with another size at the same rank."""
    for node, size in sizes:
        release_node(registry, node, now)
        fresh = registry.add(node.type, node.rank, now, size, node.relaunches)
        registry.change(node, replaced_by=fresh.id)


def has_requested_nodes(registry: NodeRegistry, node_type: str, count: int) -> bool:
    """Whether `count` nodes run or have succeeded, and there are no more than that."""
    nodes = [node for node in registry.of(node_type) if not node.released and node.replaced_by < 0]
    ready = [node for node in nodes if node.registered or node.status is NodeStatus.SUCCEEDED]
    return len(ready) >= count and len(registry.live(node_type)) <= count


def taken_ranks(registry: NodeRegistry, node_type: str) -> set[int]:
    """Ranks of nodes that run, or that ended and keep their rank."""
    return {node.rank for node in registry.of(node_type) if node.replaced_by < 0 and not node.released}


def free_ranks(taken: AbstractSet[int], count: int) -> list[int]:
    free: list[int] = []
    rank = 0
    while len(free) < count:
        if rank not in taken:
            free.append(rank)
        rank += 1
    return free


@dataclass(frozen=True)
class MemberResize:
    """How a plan changes the members of the training cluster.

    Attributes:
        count: new number of members; None keeps the present number.
        migrate: the members to replace: node id → size of the replacement.
        resource: size of the added members.
    """

    count: int | None = None
    migrate: Mapping[int, NodeResource] | None = None
    resource: NodeResource = field(default_factory=NodeResource)


def resize_servers(
    registry: NodeRegistry, ps: Sequence[int], resize: MemberResize, now: float
) -> tuple[int, ...]:
    """Create the nodes that `resize` needs in addition to the present servers `ps`.

    The replacement of a migrated server takes its rank. Added servers take the next ranks. If there are too
    many servers, those with the highest ranks are left out.

    Returns:
        Ids of the target's members, by rank.
    """
    migrate = resize.migrate or {}
    count = len(ps) if resize.count is None else resize.count
    target = []
    for rank in range(count):
        if rank >= len(ps):
            target.append(registry.add(names.PS_TYPE, rank, now, resize.resource).id)
        elif ps[rank] in migrate:
            target.append(registry.add(names.PS_TYPE, rank, now, migrate[ps[rank]]).id)
        else:
            target.append(ps[rank])
    return tuple(target)


def first_servers(registry: NodeRegistry, count: int, resource: NodeResource, now: float) -> tuple[int, ...]:
    return resize_servers(registry, (), MemberResize(count=count, resource=resource), now)
