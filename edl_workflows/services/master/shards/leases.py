"""Leases: which node holds each, and until when. The shards of a lease are recorded in the sequences."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from edl_workflows.core.protocol.datasets import TaskType


class AckResult(Enum):
    """Result of an acknowledgement; see `AckReply`."""

    ACCEPTED = 1
    DUPLICATE = 2
    STALE = 3


class LeasedShard(NamedTuple):
    """A shard granted to a worker, with the fields of `Shard`. A named tuple, since thousands are made."""

    epoch: int
    ordinal: int
    lease: int
    partition: str
    start: int
    end: int
    indices: list[int] | None


class ShardName(Protocol):
    """Names a shard and its lease: a `ShardKey` from the wire, or a `LeasedShard`."""

    @property
    def epoch(self) -> int: ...

    @property
    def ordinal(self) -> int: ...

    @property
    def lease(self) -> int: ...

    @property
    def partition(self) -> str: ...


@dataclass(frozen=True)
class ExpiredLease:
    """A lease that timed out; its shards are in the queue again.

    Attributes:
        silent: whether its holder acknowledged no shard of any data set in the meantime.
        task_type, timeout: parameters of the data set.
    """

    dataset: str
    node: str
    silent: bool
    task_type: TaskType
    timeout: float


@dataclass(eq=False, slots=True)
class Lease:
    """Shards granted together.

    Attributes:
        deadline: Unix seconds; extended whenever one of the shards is acknowledged.
        open: number of its shards that have not been answered yet.
    """

    number: int
    node: str
    deadline: float
    open: int = 0


class Leases:
    """The leases of one data set that have open shards."""

    __slots__ = ("_by_number", "_earliest")

    def __init__(self) -> None:
        self._by_number: dict[int, Lease] = {}
        self._earliest = float("inf")
        """Lower bound of all deadlines, which ends most scans for expired leases at once."""

    def add(self, lease: Lease) -> None:
        self._by_number[lease.number] = lease
        self._earliest = min(self._earliest, lease.deadline)

    def end(self, lease: Lease) -> None:
        del self._by_number[lease.number]

    def all(self) -> list[Lease]:
        return list(self._by_number.values())

    def of(self, node: str) -> list[Lease]:
        """A node's leases, oldest first."""
        return [lease for lease in self._by_number.values() if lease.node == node]

    def expired(self, now: float) -> list[Lease]:
        """The leases whose deadline has passed."""
        if now < self._earliest:
            return []
        self._earliest = min((lease.deadline for lease in self._by_number.values()), default=float("inf"))
        return [lease for lease in self._by_number.values() if lease.deadline <= now]
