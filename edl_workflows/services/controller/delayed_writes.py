"""Status writes that are delayed so that one write covers several changes. No I/O here.

When many pods start or end at about the same time, a job's counters change many times within a second. One
write then covers all these changes.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MEMORY = 100_000
"""Most objects to remember; more never wait at a time. The oldest beyond this number are forgotten, which at
worst lengthens their wait.
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
        """How long the object's write must still wait. The wait begins with the first call; later calls can
        only shorten it.

        Args:
            uid: the object's.
            seconds: how long it may wait; 0 if it must not wait, or if there is nothing to write.

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
