"""Which parameter servers there shall be: the members of the next version (`cluster_versions`) of a job that has such."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edl_workflows.jobs import names
from edl_workflows.jobs.scale_plan.model import NodeResource
from edl_workflows.master.state.nodes import NodeRegistry


@dataclass(frozen=True)
class MemberResize:
    """What a plan wants of the parameter servers.

    Attributes:
        count: how many; None keeps it.
        migrate: new size by node id.
        resource: size of servers that are added.
    """

    count: int | None = None
    migrate: Mapping[int, NodeResource] | None = None
    resource: NodeResource = field(default_factory=NodeResource)


def resize_servers(
    registry: NodeRegistry, ps: Sequence[int], wanted: MemberResize, now: float
) -> tuple[int, ...]:
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


def first_servers(registry: NodeRegistry, count: int, resource: NodeResource, now: float) -> tuple[int, ...]:
    """Makes the servers of the first version."""
    return resize_servers(registry, (), MemberResize(count=count, resource=resource), now)
