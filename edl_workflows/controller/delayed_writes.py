"""Status writes that are delayed so that one write covers several changes. No I/O here.

A swarm of pods that start or end changes a job's counters many times within a second; one write tells what it
comes to.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MEMORY = 100_000
"""More objects than can wait at a time; the oldest beyond them are forgotten, which lengthens their wait at
worst.
"""


class DelayedWrites:
    """When each object's delayed write is due.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._due: OrderedDict[str, float] = OrderedDict()

    def left(self, uid: str, seconds: float) -> float:
        """How long the object's write has to wait still; the wait begins with the first call and is shortened
        by later ones.

        Args:
            uid: the object's.
            seconds: how long it may wait; 0 for not at all, or where there is nothing to write.

        Returns:
            Seconds; 0 once it is to be written. The next call begins a new wait.
        """
        with self._lock:
            now = self._clock()
            due = min(now + seconds, self._due.get(uid, float("inf")))
            if due <= now or not seconds:
                self._due.pop(uid, None)
                return 0.0
            self._due[uid] = due
            while len(self._due) > MEMORY:
                self._due.popitem(last=False)
            return due - now
