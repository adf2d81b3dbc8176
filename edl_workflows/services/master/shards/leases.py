"""Leases: which node holds each, and until when. The shards of a lease are recorded in the sequences."""

from dataclasses import dataclass
from typing import Literal, Protocol

from edl_workflows.core.protocol.datasets import TaskType

AckResult = Literal["accepted", "duplicate", "stale"]
"""Result of an acknowledgement; see `AckReply`."""


@dataclass(slots=True)
class LeasedShard:
    """A shard granted to a worker, with the fields of `Shard`, but faster to make."""

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

    __slots__ = ("_by_number",)

    def __init__(self) -> None:
        self._by_number: dict[int, Lease] = {}

    def add(self, lease: Lease) -> None:
        self._by_number[lease.number] = lease

    def end(self, lease: Lease) -> None:
        del self._by_number[lease.number]

    def find(self, number: int) -> Lease | None:
        return self._by_number.get(number)

    def all(self) -> list[Lease]:
        return list(self._by_number.values())

    def of(self, node: str) -> list[Lease]:
        """A node's leases, oldest first."""
        return [lease for lease in self._by_number.values() if lease.node == node]

    def expired(self, now: float) -> list[Lease]:
        """The leases whose deadline has passed."""
        return [lease for lease in self._by_number.values() if lease.deadline <= now]
