"""Sync groups and barriers between workers (upstream's ``join_sync``, ``sync_finished`` and ``barrier``)."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from edl_workflows.exceptions import InvalidError
from edl_workflows.protocol.sync import SyncState

MAX_NAMES = 1000
"""Groups and barriers of a job, each."""


@dataclass(frozen=True)
class Group:
    """Workers that wait for each other.

    Attributes:
        members: those that ran at the first join.
        joined: those that reached the point.
    """

    members: tuple[str, ...]
    joined: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sync:
    """All groups and the names of the open barriers."""

    groups: dict[str, Group] = field(default_factory=dict)
    barriers: tuple[str, ...] = ()


def join(sync: Sync, name: str, node: str, running: Iterable[str]) -> Sync:
    """A worker reached the point. Repeatable.

    Raises:
        InvalidError: too many groups.
    """
    group = sync.groups.get(name)
    if group is None:
        if len(sync.groups) >= MAX_NAMES:
            raise InvalidError(f"sync group {name!r}: the job has {MAX_NAMES} groups, the most there can be")
        group = Group(tuple(sorted({*running, node})))
    if node in group.joined:
        return sync
    return replace(sync, groups={**sync.groups, name: replace(group, joined=(*group.joined, node))})


def state(sync: Sync, name: str, running: Iterable[str]) -> SyncState:
    """Whether all of the group have joined; a worker that ended has left it."""
    group = sync.groups.get(name)
    if group is None:
        return SyncState(finished=False)
    missing = [node for node in group.members if node in set(running) and node not in group.joined]
    return SyncState(finished=not missing, missing=missing)


def open_barrier(sync: Sync, name: str) -> Sync:
    """Opens a barrier, for good. Repeatable.

    Raises:
        InvalidError: too many barriers.
    """
    if name in sync.barriers:
        return sync
    if len(sync.barriers) >= MAX_NAMES:
        raise InvalidError(f"barrier {name!r}: the job has {MAX_NAMES} barriers, the most there can be")
    return replace(sync, barriers=(*sync.barriers, name))
