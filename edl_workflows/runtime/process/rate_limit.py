"""Limits how often each client may call: token buckets."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RateLimit:
    """A rate limit.

    Attributes:
        per_second: calls, on average.
        burst: calls at once.
    """

    per_second: float
    burst: float


class TokenBuckets:
    """One token bucket per key, full at first. Not thread-safe.

    Args:
        rate: of each bucket.
        clock: monotonic seconds.
        memory: buckets kept; the least recently used one is dropped first, and starts full when it comes
            back.
    """

    def __init__(
        self, rate: RateLimit, clock: Callable[[], float] = time.monotonic, memory: int = 10_000
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._memory = memory
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Count a call.

        Returns:
            0.0 if the call is within the limit; otherwise the seconds until the next one will be, and this
            call does not count.
        """
        now = self._clock()
        tokens, then = self._buckets.pop(key, (self._rate.burst, now))
        tokens = min(self._rate.burst, tokens + (now - then) * self._rate.per_second)
        allowed = tokens >= 1.0
        self._buckets[key] = (tokens - allowed, now)
        if len(self._buckets) > self._memory:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - tokens) / self._rate.per_second
