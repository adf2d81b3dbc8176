"""Partitions: which replica of a controller owns a job, and from when on it may act.

Each replica holds a slot, a Lease. A job belongs to the live slot with the highest weight for the job's name
(rendezvous hashing), so a slot that comes or goes moves only its own jobs. A replica's partition is the jobs
that belong to its slot. Two replicas never act on one job, although each looks at the Leases on its own. A
new replica lists the Leases after it has got its slot, and acts on nothing before every other holder has
acknowledged it, or its Lease has expired. A holder acknowledges a new one, in its own Lease, when its last
decision about a job that now belongs to the new one is finished. A slot whose Lease has not been renewed for
its whole duration no longer counts. Its holder has stopped before that, because it gives up earlier than the
others give it up.

Times are monotonic seconds of the replica that looks; the times in a Lease are those of other clocks.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from edl_workflows.core.exceptions import InvalidError

MAX_PARTITIONS = 16
"""Most replicas that share the jobs. Each lists all Leases, so their number grows with its square."""


def check_partitions(count: int) -> None:
    """Check a number of partitions.

    Raises:
        InvalidError: it is out of range.
    """
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidError(f"{count} controller partitions: choose 1 to {MAX_PARTITIONS}")


def owner_of(key: str, slots: Collection[int]) -> int:
    """The slot that a key belongs to; there must be one."""
    return max(slots, key=lambda slot: (_weight(slot, key), slot))


def _weight(slot: int, key: str) -> bytes:
    return hashlib.blake2b(f"{slot} {key}".encode(), digest_size=8).digest()


def lease_name(name: str, slot: int) -> str:
    """The name of a slot's Lease. The first has the name of the only one of a process without slots."""
    return f"{name}-{slot}" if slot else name


@dataclass(frozen=True)
class SlotLease:
    """The Lease of a slot, as a replica has seen it.

    Attributes:
        slot: number of the slot.
        holder: identity of the replica that holds it; "" after a release.
        version: the Lease's resourceVersion.
        seconds: after which a Lease that is not renewed has expired.
        acknowledged: the replicas on whose jobs the holder does not act.
        since: when the replica has first seen this version.
    """

    slot: int
    holder: str
    version: str
    seconds: float
    acknowledged: frozenset[str] = frozenset()
    since: float = 0.0


@dataclass(frozen=True)
class LeaseView:
    """What a replica has seen of the Leases of all slots.

    Attributes:
        leases: by slot.
        began: when the latest list was requested.
    """

    leases: Mapping[int, SlotLease] = field(default_factory=dict)
    began: float = 0.0

    def update(self, listed: Iterable[SlotLease], began: float, ended: float) -> "LeaseView":
        """The view after another list.

        A Lease that was deleted counts until it would have expired, since its holder may still act.

        Args:
            listed: all Leases; their `since` is ignored.
            began: when the list was requested.
            ended: when it was there.
        """
        leases = dict(self.leases)
        for lease in listed:
            before = leases.get(lease.slot)
            known = before is not None and before.version == lease.version
            leases[lease.slot] = replace(lease, since=before.since if before and known else ended)
        return LeaseView(leases, began)

    @property
    def live(self) -> frozenset[int]:
        """The slots that count. One that was released counts until it would have expired, so that its jobs do
        not move twice while a new replica replaces an old one."""
        return frozenset(slot for slot, lease in self.leases.items() if not self._expired(lease))

    def find_free(self, count: int) -> list[int]:
        """The slots below `count` that a replica may take."""
        return [slot for slot in range(count) if self._is_free(self.leases.get(slot))]

    def find_holders(self, identity: str) -> frozenset[str]:
        """The other replicas that may act, or will."""
        return frozenset(lease.holder for lease in self._holding(identity))

    def is_acknowledged(self, identity: str) -> bool:
        """Whether every other replica that may act has acknowledged this one."""
        return all(identity in lease.acknowledged for lease in self._holding(identity))

    def _holding(self, identity: str) -> Iterable[SlotLease]:
        leases = (lease for lease in self.leases.values() if not self._expired(lease))
        return (lease for lease in leases if lease.holder not in ("", identity))

    def _is_free(self, lease: SlotLease | None) -> bool:
        return lease is None or not lease.holder or self._expired(lease)

    def _expired(self, lease: SlotLease) -> bool:
        """Whether it was not renewed from when this version was seen until the latest list was requested."""
        return self.began - lease.since >= lease.seconds


class PartitionSlots:
    """The slots that determine a replica's partition: it owns the jobs for which its own slot has the highest
    weight. Without slots of others, it owns all.

    Args:
        slot: the replica's own.
        slots: all that count.
    """

    def __init__(self, slot: int = 0, slots: Collection[int] = (0,)) -> None:
        self._slot = slot
        self._slots = frozenset(slots)
        self.gone: frozenset[int] = frozenset()
        """The slots that no longer count, whose jobs nobody acts on before `take_over`."""

    def owns(self, key: str) -> bool:
        """Whether the replica owns a job."""
        return len(self._slots) == 1 or owner_of(key, self._slots) == self._slot

    def observe(self, live: frozenset[int]) -> frozenset[int]:
        """Give up the jobs of new slots. Return `gone`.

        Args:
            live: the slots that count now.
        """
        self._slots |= live | {self._slot}
        self.gone = self._slots - live - {self._slot}
        return self.gone

    def take_over(self, slots: Collection[int]) -> None:
        """Own the jobs of slots that are gone, as far as they belong to this replica."""
        self._slots -= frozenset(slots)
