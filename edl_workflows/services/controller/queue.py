"""Work queue with per-key serialisation, delays and back-off; as client-go's rate-limiting queue. No I/O
here.

No key is processed by two workers at once: a key that is added while a worker processes it is returned by
`get` again after that worker has finished. Adding a key that already waits changes nothing.
"""

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from edl_workflows.core.backoff import Backoff

Key = TypeVar("Key", bound=Hashable)

MIN_BACKOFF = 0.05
MAX_BACKOFF = 120.0
"""Seconds before a failed key is tried again; doubled with each failure. MIN is short, because a conflict is
usually over at once. MAX limits how long a job that fails for an external reason (a quota, an admission
policy) waits after that reason is gone."""


class WorkQueue(Generic[Key]):
    """Keys to be processed.

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
        """The number of keys that wait for a worker, without delayed ones."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no key waits for a worker or is being processed; there may be delayed keys."""
        with self._changed:
            return not self._waiting and not self._working

    def add(self, key: Key) -> None:
        """Queue `key` for the next free worker."""
        with self._changed:
            self._add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue `key` after this many seconds, unless it is already due earlier."""
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
        """Queue `key` after its back-off.

        Returns:
            The seconds until then.
        """
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = Backoff(MIN_BACKOFF, MAX_BACKOFF).delay(failures)
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Reset the back-off of `key` after a success."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self) -> Key | None:
        """Wait for the next key; None once the queue is closed. The caller must call `done` afterwards."""
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
        """A worker has finished with `key`, successfully or not."""
        with self._changed:
            self._working.discard(key)
            if key in self._waiting:
                self._ready.append(key)
                self._changed.notify()

    def close(self) -> None:
        """Close the queue: every `get` returns None from now on."""
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
        """Queue the delayed keys that are due; return the seconds until the next one is due."""
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
