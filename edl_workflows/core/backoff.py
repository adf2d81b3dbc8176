"""Exponential back-off."""

from dataclasses import dataclass

_MOST_DOUBLINGS = 60


@dataclass(frozen=True)
class Backoff:
    """Pauses between attempts, which double with each failure.

    Attributes:
        first: seconds after the first failure.
        most: the longest pause, in seconds.
    """

    first: float
    most: float

    def delay(self, failures: int) -> float:
        """Seconds until the next attempt after this many failures in a row."""
        if failures <= 0:
            return 0.0
        return min(self.most, self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
