"""Workers, chief and evaluators: as many as wanted, each lost one replaced at its rank. Pure transitions of the registry.

They come and go within a cluster version; parameter servers are `ps_manager`'s. In a collective job the workers themselves
are a version's members: those go only when `cluster_versions` keeps them no more.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from edl_workflows.jobs.scale_plan.model import NodeResource
from edl_workflows.master.state.cluster_versions import ClusterVersions
from edl_workflows.master.state.nodes import JobNode, NodeRegistry, NodeStatus
from edl_workflows.master.state.settings import JobSettings


def scale_role(
    registry: NodeRegistry,
    settings: JobSettings,
    node_type: str,
    wanted: int,
    size: NodeResource,
    now: float,
    versions: ClusterVersions | None = None,
) -> list[JobNode]:
    """Makes or releases nodes until `wanted` ranks are taken. A second call changes nothing.

    Up: the lowest free ranks. A worker that succeeded keeps its rank: it is not made again (upstream does). One that was
    given up keeps it too. Down: those that another has replaced, then the highest ids, critical ones last.

    Args:
        registry: the nodes.
        settings: of the job.
        node_type: role.
        wanted: how many there shall be.
        size: of new nodes.
        now: Unix seconds.
        versions: of a job whose members these nodes are: those that it keeps may not go yet.

    Returns:
        The nodes that were released.
    """
    taken = taken_ranks(registry, node_type)
    for rank in free_ranks(taken, wanted - max(len(taken), len(registry.live(node_type)))):
        registry.add(node_type, rank, now, size)
    kept, leaving = (versions.kept, versions.leaving) if versions else (frozenset(), frozenset())
    live = registry.live(node_type)
    too_many = len([node for node in live if node.id not in leaving]) - wanted
    newest = {node.rank: node.id for node in live}
    # The chief and other critical nodes stand at the end of the line.
    line = sorted(
        (node for node in live if node.id not in kept),
        key=lambda node: (settings.critical(node.type, node.rank), node.id == newest[node.rank], -node.id),
    )
    return [release_node(registry, node, now) for node in line[: max(0, too_many)]]


def release_node(registry: NodeRegistry, node: JobNode, now: float) -> JobNode:
    """The node is not wanted any more: it is told to stop, is never replaced, and its pod goes (upstream's is_released)."""
    return node if node.released else registry.change(node, released_at=now, waiting=False)


def replace_nodes(registry: NodeRegistry, sizes: Iterable[tuple[JobNode, NodeResource]], now: float) -> None:
    """Replaces workers by ones of another size, rank kept."""
    for node, size in sizes:
        release_node(registry, node, now)
        fresh = registry.add(node.type, node.rank, now, size, node.relaunches)
        registry.change(node, replaced_by=fresh.id)


def has_wanted_nodes(registry: NodeRegistry, node_type: str, wanted: int) -> bool:
    """Whether all wanted nodes run (or have succeeded) and none too many does."""
    nodes = [node for node in registry.of(node_type) if not node.released and node.replaced_by < 0]
    there = [node for node in nodes if node.registered or node.status is NodeStatus.SUCCEEDED]
    return len(there) >= wanted and len(registry.live(node_type)) <= wanted


def taken_ranks(registry: NodeRegistry, node_type: str) -> set[int]:
    """Ranks that somebody has, or keeps although it ended."""
    return {node.rank for node in registry.of(node_type) if node.replaced_by < 0 and not node.released}


def free_ranks(taken: AbstractSet[int], count: int) -> list[int]:
    """The lowest `count` ranks that nobody has."""
    free: list[int] = []
    rank = 0
    while len(free) < count:
        if rank not in taken:
            free.append(rank)
        rank += 1
    return free
