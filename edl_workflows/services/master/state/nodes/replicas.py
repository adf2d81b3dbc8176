"""Decides which nodes of a role are added and released, until it has as many as wanted. Pure.

Workers, chief and evaluators can be added and removed within a cluster version. Parameter servers, and the
workers of a collective job, are members of a version: they are removed only when `cluster_versions` no longer
keeps them.
"""

from collections.abc import Mapping, Sequence
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
) -> tuple[list[JobNode], list[JobNode]]:
    """Choose nodes to add or to release, so that `count` ranks are taken. Once that is done, there are none.

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
        The nodes to add, and those to release.
    """
    live, taken = registry.live(node_type), taken_ranks(registry, node_type)
    free = free_ranks(taken, count - max(len(taken), len(live)))
    kept, leaving = (versions.kept, versions.leaving) if versions else (frozenset(), frozenset())
    too_many = len([node for node in live if node.id not in leaving]) - count
    newest = {node.rank: node.id for node in live}
    # The chief and other critical nodes are released last.
    line = sorted(
        (node for node in live if node.id not in kept),
        key=lambda node: (settings.critical(node.type, node.rank), node.id == newest[node.rank], -node.id),
    )
    return registry.new_nodes(node_type, [(rank, size) for rank in free], now), line[: max(0, too_many)]


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
) -> tuple[tuple[int, ...], list[JobNode]]:
    """Choose the servers of the next version, given the present servers `ps`.

    The replacement of a migrated server takes its rank. Added servers take the next ranks. If there are too
    many servers, those with the highest ranks are left out.

    Returns:
        Ids of the target's members, by rank, and the nodes to add.
    """
    migrate = resize.migrate or {}
    count = len(ps) if resize.count is None else resize.count
    migrated = [(rank, migrate[ps[rank]]) for rank in range(min(count, len(ps))) if ps[rank] in migrate]
    added = [(rank, resize.resource) for rank in range(len(ps), count)]
    fresh = registry.new_nodes(names.PS_TYPE, [*migrated, *added], now)
    target = dict(enumerate(ps[:count])) | {node.rank: node.id for node in fresh}
    return tuple(target.values()), fresh
