"""One epoch or partition: which of its shards are new, out, back, or done."""

from collections import OrderedDict

from edl_workflows.master.shards.permutation import Permutation
from edl_workflows.master.shards.snapshot import SequencePosition, numbers_of, to_intervals

MAX_RETURNED = 1000
"""So many shards may wait for the end of their epoch after they came back; with more, they go first. Each can cost some
30 bytes of stored state, which must stay far below the 1 MiB of a ConfigMap."""


class Sequence:
    """The shards 0..count-1 of one epoch or partition, in the order in which they are handed out.

    A shard is *fresh* (at or above the cursor), *leased*, *returned*, or else done. Nothing is kept of fresh and done
    ones, but for `ahead`: done before they were handed out.

    Args:
        count: how many shards there are now; those of an open stream become more.
        position: where to begin; what was outstanding there is returned.
        order: the shuffle of its shards or records, if they are shuffled.
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
        self.order = order
        self.epoch = position.epoch
        self.partition = position.partition
        self.count = count
        self.cursor = position.cursor
        self.leased: dict[int, int] = {}
        """Lease number by ordinal."""
        self.returned = OrderedDict.fromkeys(numbers_of(position.outstanding))
        self.ahead = set(numbers_of(position.ahead))
        self.partial = dict(position.partial)
        self.retries = dict(position.retries)

    @property
    def complete(self) -> bool:
        """All shards that there are now are done."""
        # Shards done ahead of the cursor are skipped at once, so that it reaches the end with the last of them.
        return self.cursor == self.count and not self.leased and not self.returned

    def take(self) -> int | None:
        """The next shard to hand out, which the caller leases; None if all are out or done."""
        if self.cursor < self.count and len(self.returned) < MAX_RETURNED:
            ordinal = self.cursor
            self.cursor += 1
            if self.ahead:
                self._skip_ahead()
            return ordinal
        return self.returned.popitem(last=False)[0] if self.returned else None

    def settle(self, ordinal: int) -> bool:
        """Marks a shard of 0..count-1 as done, wherever it is; False if it was done before."""
        if ordinal >= self.cursor:
            if ordinal in self.ahead:
                return False
            self.ahead.add(ordinal)
            self._skip_ahead()
        elif self.leased.pop(ordinal, None) is None:
            if ordinal not in self.returned:
                return False
            del self.returned[ordinal]
        self.partial.pop(ordinal, None)
        self.retries.pop(ordinal, None)
        return True

    def give_back(self, ordinal: int) -> None:
        """A leased shard goes to the end of the queue."""
        del self.leased[ordinal]
        self.returned[ordinal] = None

    def position(self) -> SequencePosition:
        """What is done, with leased and returned shards alike as outstanding."""
        return SequencePosition(
            epoch=self.epoch,
            partition=self.partition,
            cursor=self.cursor,
            outstanding=to_intervals([*self.leased, *self.returned]),
            ahead=to_intervals(self.ahead),
            partial=dict(sorted(self.partial.items())),
            retries=dict(sorted(self.retries.items())),
        )

    def _skip_ahead(self) -> None:
        while self.cursor in self.ahead:
            self.ahead.discard(self.cursor)
            self.cursor += 1
