"""Work queue with per-key serialisation, delays and back-off; as client-go's rate-limiting queue. No I/O
here.

A key that is added while it is being worked on is handed out again when that work is done, and never to two
workers at once. Adding a key that waits already changes nothing.
"""

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

MIN_BACKOFF = 0.05
MAX_BACKOFF = 120.0
"""Seconds before a failed key is tried again: doubled with each failure. MIN lets a conflict pass at once;
MAX is how long a job that fails for an outside reason (a quota, an admission policy) may stay behind after
that reason is gone."""


class WorkQueue(Generic[Key]):
    """Keys to be worked on.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._ready: deque[Key] = deque()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()
        self._later: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._tickets = itertools.count()
        self._closed = False

    def __len__(self) -> int:
        """Keys that wait for a worker now; delayed ones are not counted."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no key waits for a worker or is being worked on; delayed ones may be there."""
        with self._changed:
            return not self._waiting and not self._working

    def add(self, key: Key) -> None:
        """Hand `key` out as soon as a worker is free."""
        with self._changed:
            self._add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Hand `key` out after so many seconds; an earlier time that was set before stays."""
        if seconds <= 0:
            return self.add(key)
        due = self._clock() + seconds
        with self._changed:
            if due < self._due.get(key, float("inf")):
                self._due[key] = due
                heapq.heappush(self._later, (due, next(self._tickets), key))
                self._changed.notify()
        return None

    def retry(self, key: Key) -> float:
        """Hand `key` out after its back-off.

        Returns:
            The seconds until then.
        """
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(failures - 1, 30))
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """The work on `key` succeeded: its next failure begins with the shortest back-off."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self) -> Key | None:
        """The next key, waiting for one; None once the queue is closed. Call `done` when its work ends."""
        with self._changed:
            while not self._closed:
                wait = self._release_due()
                if self._ready:
                    key = self._ready.popleft()
                    self._waiting.discard(key)
                    self._working.add(key)
                    return key
                self._changed.wait(None if wait is None else min(wait, threading.TIMEOUT_MAX))
            return None

    def done(self, key: Key) -> None:
        """The work on `key` ended, well or not."""
        with self._changed:
            self._working.discard(key)
            if key in self._waiting:
                self._ready.append(key)
                self._changed.notify()

    def close(self) -> None:
        """No more work: every `get` returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, key: Key) -> None:
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._changed.notify()

    def _release_due(self) -> float | None:
        """Move what is due to the ready ones; seconds until the next is."""
        now = self._clock()
        while self._later:
            due, _, key = self._later[0]
            if due > now:
                return due - now
            heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self._add(key)
        return None
