"""Who holds which shards, since when, under which number."""

from dataclasses import dataclass, field

from edl_workflows.master.shards.sequence import Sequence
from edl_workflows.master.shards.snapshot import LeaseSnapshot, to_intervals


@dataclass(eq=False, slots=True)
class Lease:
    """Shards handed out together, and not yet answered.

    Attributes:
        deadline: Unix seconds; put off whenever one of them is acknowledged.
    """

    number: int
    node: str
    deadline: float
    shards: set[tuple[Sequence, int]] = field(default_factory=set)


class Leases:
    """The leases of one data set."""

    __slots__ = ("_by_node", "_by_number", "_earliest")

    def __init__(self) -> None:
        self._by_number: dict[int, Lease] = {}
        self._by_node: dict[str, dict[int, Lease]] = {}
        self._earliest = float("inf")
        """No lease has an earlier deadline; so most scans for time-outs end at once."""

    def add(self, lease: Lease) -> None:
        """Hands out the shards of a lease."""
        for sequence, ordinal in lease.shards:
            sequence.leased[ordinal] = lease.number
        self._by_number[lease.number] = lease
        self._by_node.setdefault(lease.node, {})[lease.number] = lease
        self._earliest = min(self._earliest, lease.deadline)

    def holder_of(self, sequence: Sequence, ordinal: int) -> Lease | None:
        """The lease that a shard is under now."""
        number = sequence.leased.get(ordinal)
        return None if number is None else self._by_number[number]

    def remove(self, lease: Lease, sequence: Sequence, ordinal: int) -> None:
        """A shard leaves its lease; with the last one the lease ends. The sequence is the caller's to update."""
        lease.shards.discard((sequence, ordinal))
        if not lease.shards:
            self._end(lease)

    def give_back(self, lease: Lease) -> list[tuple[Sequence, int]]:
        """Ends a lease: its shards return to their queues, in order. Returns them."""
        shards = sorted(lease.shards, key=lambda shard: shard[1])
        for sequence, ordinal in shards:
            sequence.give_back(ordinal)
        self._end(lease)
        return shards

    def of(self, node: str) -> list[Lease]:
        """A node's leases, oldest first."""
        return list(self._by_node.get(node, {}).values())

    def expired(self, now: float) -> list[Lease]:
        """The leases whose deadline has passed."""
        if now < self._earliest:
            return []
        self._earliest = min((lease.deadline for lease in self._by_number.values()), default=float("inf"))
        return [lease for lease in self._by_number.values() if lease.deadline <= now]

    def snapshot(self) -> list[LeaseSnapshot]:
        """All leases, for storing."""
        return [_stored(lease) for lease in self._by_number.values()]

    def _end(self, lease: Lease) -> None:
        del self._by_number[lease.number]
        of_node = self._by_node[lease.node]
        del of_node[lease.number]
        if not of_node:
            del self._by_node[lease.node]


def _stored(lease: Lease) -> LeaseSnapshot:
    ordinals: dict[tuple[int, str], list[int]] = {}
    for sequence, ordinal in lease.shards:
        ordinals.setdefault((sequence.epoch, sequence.partition), []).append(ordinal)
    shards = [(*name, to_intervals(numbers)) for name, numbers in sorted(ordinals.items())]
    return LeaseSnapshot(number=lease.number, node=lease.node, deadline=lease.deadline, shards=shards)
