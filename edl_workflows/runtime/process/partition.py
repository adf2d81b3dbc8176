"""The partition on which a process acts (`edl_workflows.core.partitions`), for all its threads."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edl_workflows.core.partitions import PartitionSlots

CLUSTER_WIDE = "*"
"""Key of decisions about the jobs of the whole cluster, which the owner of this key makes."""


class Partition:
    """The partition. At first it contains everything, as for the only process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots = PartitionSlots()
        self._acting: Counter[str] = Counter()
        self._on_gone: Callable[[], None] = lambda: None
        self._planned: frozenset[int] = frozenset()

    def on_gone(self, listener: Callable[[], None]) -> None:
        """Call `listener` now and then while there are slots to take over; it must be quick."""
        self._on_gone = listener

    def owns(self, key: str) -> bool:
        """Whether this process owns a key now."""
        with self._lock:
            return self._slots.owns(key)

    @contextmanager
    def acting(self, key: str) -> Iterator[bool]:
        """Act on a key, if this process owns it, which is the context's value. Another process does not act
        on it before the context has ended."""
        with self._lock:
            owned = self._slots.owns(key)
            self._acting[key] += owned
        try:
            yield owned
        finally:
            with self._lock:
                self._acting[key] -= owned
                if not self._acting[key]:
                    del self._acting[key]

    def begin(self, slot: int, live: frozenset[int]) -> None:
        """Own the partition of a slot."""
        with self._lock:
            self._slots = PartitionSlots(slot, live | {slot})

    def observe(self, live: frozenset[int]) -> bool:
        """Give up the keys of new slots. Return whether this process acts on none of them any more."""
        with self._lock:
            gone = self._slots.observe(live)
            self._planned &= gone
            finished = all(map(self._slots.owns, self._acting))
        if gone:
            self._on_gone()
        return finished

    def plan_take_over(self) -> frozenset[int]:
        """Note the slots that have expired, on whose keys nobody acts before `take_over`."""
        with self._lock:
            self._planned = self._slots.gone
            return self._planned

    def take_over(self) -> None:
        """Own the keys of the planned slots that have stayed expired, as far as they are this process's."""
        with self._lock:
            self._slots.take_over(self._planned)
