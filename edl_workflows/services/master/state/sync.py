"""Sync groups and barriers between workers (DLRover's `join_sync`, `sync_finished` and `barrier`)."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.sync import SyncState

MAX_NAMES = 1000
"""Most groups, and most barriers, of a job."""


@dataclass(frozen=True)
class SyncGroup:
    """Workers that wait for each other.

    Attributes:
        members: workers that ran at the first join; empty once all have joined, which is final.
        joined: those that reached the point.
    """

    members: tuple[str, ...]
    joined: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncGroups:
    """All groups, and the names of the open barriers."""

    groups: dict[str, SyncGroup] = field(default_factory=dict)
    barriers: tuple[str, ...] = ()


def join_group(sync: SyncGroups, name: str, node: str, running: Collection[str]) -> SyncGroups:
    """Record that a worker reached the point. Repeatable.

    Raises:
        InvalidError: there are too many groups.
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
    """Whether all of the group have joined; a worker that ended is no longer waited for."""
    group = sync.groups.get(name)
    if group is None:
        return SyncState(finished=False)
    missing = _missing(group, running)
    return SyncState(finished=not missing, missing=missing)


def _missing(group: SyncGroup, running: Collection[str]) -> list[str]:
    present = set(running) - set(group.joined)
    return [node for node in group.members if node in present]


def open_barrier(sync: SyncGroups, name: str) -> SyncGroups:
    """Open a barrier for good. Repeatable.

    Raises:
        InvalidError: there are too many barriers.
    """
    if name in sync.barriers:
        return sync
    if len(sync.barriers) >= MAX_NAMES:
        raise InvalidError(f"barrier {name!r}: the job has {MAX_NAMES} barriers, the most there can be")
    return replace(sync, barriers=(*sync.barriers, name))
