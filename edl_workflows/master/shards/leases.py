"""Who holds shards, under which number, until when. Which shards those are is the sequences' to know."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from edl_workflows.protocol.datasets import TaskType


class AckResult(Enum):
    """What an answer to a lease came to; see `AckReply`."""

    ACCEPTED = 1
    DUPLICATE = 2
    STALE = 3


class LeasedShard(NamedTuple):
    """A shard in a worker's hands; the fields are those of `Shard`. A tuple, since they are made by the thousand."""

    epoch: int
    ordinal: int
    lease: int
    partition: str
    start: int
    end: int
    indices: list[int] | None


class ShardName(Protocol):
    """What names a shard and its lease: a `ShardKey` from the wire, or a `LeasedShard`."""

    @property
    def epoch(self) -> int:
        """See `ShardKey`."""

    @property
    def ordinal(self) -> int:
        """See `ShardKey`."""

    @property
    def lease(self) -> int:
        """See `ShardKey`."""

    @property
    def partition(self) -> str:
        """See `ShardKey`."""


@dataclass(frozen=True)
class ExpiredLease:
    """A lease that timed out; its shards are in the queue again.

    Attributes:
        silent: its holder answered for no shard of any data set in the meantime, either.
        task_type, timeout: the data set's.
    """

    dataset: str
    node: str
    lease: int
    shards: int
    silent: bool
    task_type: TaskType
    timeout: float


@dataclass(eq=False, slots=True)
class Lease:
    """Shards handed out together.

    Attributes:
        deadline: Unix seconds; put off whenever one of them is acknowledged.
        open: how many of them are not answered.
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
        """No lease has an earlier deadline; so most scans for time-outs end at once."""

    def add(self, lease: Lease) -> None:
        """A lease begins."""
        self._by_number[lease.number] = lease
        self._earliest = min(self._earliest, lease.deadline)

    def end(self, lease: Lease) -> None:
        """Its last open shard was answered or went back."""
        del self._by_number[lease.number]

    def all(self) -> list[Lease]:
        """All, oldest first."""
        return list(self._by_number.values())

    def of(self, node: str) -> list[Lease]:
        """A node's leases, oldest first."""
        return [lease for lease in self._by_number.values() if lease.node == node]

    def expired(self, now: float) -> list[Lease]:
        """Those whose deadline has passed."""
        if now < self._earliest:
            return []
        self._earliest = min((lease.deadline for lease in self._by_number.values()), default=float("inf"))
        return [lease for lease in self._by_number.values() if lease.deadline <= now]
