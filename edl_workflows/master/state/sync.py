"""Sync groups and barriers between workers (upstream's ``join_sync``, ``sync_finished`` and ``barrier``)."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from edl_workflows.exceptions import InvalidError
from edl_workflows.protocol.sync import SyncState

MAX_NAMES = 1000
"""Groups and barriers of a job, each."""


@dataclass(frozen=True)
class SyncGroup:
    """Workers that wait for each other.

    Attributes:
        members: those that ran at the first join; none once all have joined, which holds for good.
        joined: those that reached the point.
    """

    members: tuple[str, ...]
    joined: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncGroups:
    """All groups and the names of the open barriers."""

    groups: dict[str, SyncGroup] = field(default_factory=dict)
    barriers: tuple[str, ...] = ()


def join_group(sync: SyncGroups, name: str, node: str, running: Collection[str]) -> SyncGroups:
    """A worker reached the point. Repeatable.

    Raises:
        InvalidError: too many groups.
    """
    group = sync.groups.get(name)
    if group is None:
        if len(sync.groups) >= MAX_NAMES:
            raise InvalidError(f"sync group {name!r}: the job has {MAX_NAMES} groups, the most there can be")
        group = SyncGroup(tuple(sorted({*running, node})))
    if node in group.joined or not group.members:
        return sync
    group = replace(group, joined=(*group.joined, node))
    if not _missing(group, running):
        group = SyncGroup(())  # a thousand groups of all workers would not fit into the stored state
    return replace(sync, groups={**sync.groups, name: group})


def group_state(sync: SyncGroups, name: str, running: Collection[str]) -> SyncState:
    """Whether all of the group have joined; a worker that ended has left it."""
    group = sync.groups.get(name)
    if group is None:
        return SyncState(finished=False)
    missing = _missing(group, running)
    return SyncState(finished=not missing, missing=missing)


def _missing(group: SyncGroup, running: Collection[str]) -> list[str]:
    present = set(running) - set(group.joined)
    return [node for node in group.members if node in present]


def open_barrier(sync: SyncGroups, name: str) -> SyncGroups:
    """Opens a barrier, for good. Repeatable.

    Raises:
        InvalidError: too many barriers.
    """
    if name in sync.barriers:
        return sync
    if len(sync.barriers) >= MAX_NAMES:
        raise InvalidError(f"barrier {name!r}: the job has {MAX_NAMES} barriers, the most there can be")
    return replace(sync, barriers=(*sync.barriers, name))
