"""One epoch or partition: which of its shards are fresh, leased, returned or done."""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from edl_workflows.core.protocol.permutation import Permutation
from edl_workflows.services.master.shards.leases import Lease
from edl_workflows.services.master.shards.snapshot import SequencePosition, numbers_of, to_intervals

MAX_RETURNED = 1000
"""Most re-queued shards that wait for the end of their epoch; if there are more, they go first. Each can take
some 30 bytes of the stored state, which must stay far below the 1 MiB of a ConfigMap.
"""


class ShardSequence:
    """The shards 0..count-1 of one epoch or partition, in the order in which they are leased.

    A shard is *fresh* (at or above the cursor), *leased*, *returned*, or else done. Fresh and done shards are
    not recorded, except those in `ahead`: they are done although they are above the cursor.

    Args:
        count: present number of shards; it grows while a stream is open.
        position: where to begin; outstanding shards of the position count as returned.
        order: the permutation of the shards or records, if they are shuffled.
    """

    __slots__ = (
        "ahead",
        "count",
        "cursor",
        "epoch",
        "leased",
        "order",
        "partial",
        "partition",
        "retries",
        "returned",
    )

    def __init__(self, count: int, position: SequencePosition, order: Permutation | None = None) -> None:
        if position.cursor > count:
            raise ValueError(f"cursor {position.cursor} of epoch {position.epoch}: there are {count} shards")
        self.order = order
        self.epoch = position.epoch
        self.partition = position.partition
        self.count = count
        self.cursor = position.cursor
        self.leased: dict[int, Lease] = {}
        self.returned = OrderedDict.fromkeys(numbers_of(position.outstanding))
        self.ahead = set(numbers_of(position.ahead))
        self.partial = dict(position.partial)
        self.retries = dict(position.retries)

    @property
    def complete(self) -> bool:
        """Whether all present shards are done."""
        # The cursor skips shards in `ahead` at once, so it reaches the end with the last shard.
        return self.cursor == self.count and not self.leased and not self.returned

    def take(self, limit: int, lease: Lease) -> list[int]:
        """Lease up to `limit` next shards."""
        if len(self.returned) >= MAX_RETURNED:
            taken = self._pop_returned(limit)
        else:
            taken = self._pop_fresh(limit)
            if self.returned and len(taken) < limit:
                taken += self._pop_returned(limit - len(taken))
        for ordinal in taken:
            self.leased[ordinal] = lease
        lease.open += len(taken)
        return taken

    def settle(self, ordinal: int) -> bool:
        """Mark a shard of 0..count-1 as done, whatever its state. Return False if it was done before."""
        lease = self.leased.pop(ordinal, None)
        if lease is not None:
            lease.open -= 1
        elif ordinal in self.returned:
            del self.returned[ordinal]
        elif ordinal < self.cursor or ordinal in self.ahead:
            return False
        else:
            self.ahead.add(ordinal)
            self._skip_ahead()
        if self.partial or self.retries:
            self.partial.pop(ordinal, None)
            self.retries.pop(ordinal, None)
        return True

    def give_back(self, ordinals: Iterable[int]) -> None:
        """Move leased shards to the end of the queue."""
        for ordinal in ordinals:
            self.leased.pop(ordinal).open -= 1
            self.returned[ordinal] = None

    def lease_returned(self, ordinals: Iterable[int], lease: Lease) -> None:
        """Lease certain returned shards again: a snapshot shows that they were leased."""
        for ordinal in ordinals:
            del self.returned[ordinal]
            self.leased[ordinal] = lease
            lease.open += 1

    def continue_lease(self, ordinal: int, lease: Lease) -> bool:
        """Lease a certain shard that the previous master had leased. Return False if it is done.

        The previous master had leased all shards before it, too: those that are still fresh become returned.
        A newer lease of the shard replaces an older one.
        """
        held = self.leased.get(ordinal)
        if held is not None:
            if held.number >= lease.number:
                return False
            held.open -= 1
        else:
            if self.cursor <= ordinal:
                self._pass_over(ordinal + 1)
            if ordinal not in self.returned:
                return False
            del self.returned[ordinal]
        self.leased[ordinal] = lease
        lease.open += 1
        return True

    def by_lease(self) -> dict[Lease, list[int]]:
        shards: dict[Lease, list[int]] = {}
        for ordinal, lease in self.leased.items():
            shards.setdefault(lease, []).append(ordinal)
        return shards

    def position(self) -> SequencePosition:
        """Which shards are done; leased and returned shards are both outstanding."""
        return SequencePosition(
            epoch=self.epoch,
            partition=self.partition,
            cursor=self.cursor,
            outstanding=to_intervals([*self.leased, *self.returned]),
            ahead=to_intervals(self.ahead),
            partial=dict(sorted(self.partial.items())),
            retries=dict(sorted(self.retries.items())),
        )

    def _pop_fresh(self, limit: int) -> list[int]:
        if not self.ahead:
            first = self.cursor
            self.cursor = min(first + limit, self.count)
            return list(range(first, self.cursor))
        taken: list[int] = []
        while len(taken) < limit and self.cursor < self.count:
            taken.append(self.cursor)
            self.cursor += 1
            self._skip_ahead()
        return taken

    def _pop_returned(self, limit: int) -> list[int]:
        taken = list(islice(self.returned, limit))
        for ordinal in taken:
            del self.returned[ordinal]
        return taken

    def _pass_over(self, end: int) -> None:
        for ordinal in range(self.cursor, end):
            if ordinal in self.ahead:
                self.ahead.discard(ordinal)
            else:
                self.returned[ordinal] = None
        self.cursor = end
        self._skip_ahead()

    def _skip_ahead(self) -> None:
        while self.cursor in self.ahead:
            self.ahead.discard(self.cursor)
            self.cursor += 1
