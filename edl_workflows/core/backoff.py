"""Pauses between attempts, and between the pods of one place of a job."""

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


FREE_REPLACEMENTS = 3
"""Replacements in a row that are made at once, whatever ended the pods."""
STEADY_SECONDS = 600.0
"""After a pod that was there for so long, the count of replacements begins anew (kubelet's rule)."""
_REPLACEMENTS = Backoff(first=10.0, most=300.0)


def count_replacements(replacements: int, age: float) -> int:
    """How many replacements of one place there are in a row with the next one.

    Args:
        replacements: how many there were when the present pod was made.
        age: seconds since it was made.
    """
    return 1 if age >= STEADY_SECONDS else replacements + 1


def replacement_pause(replacements: int) -> float:
    """Seconds that must lie between the creation of a pod, after so many replacements in a row of its place,
    and that of its successor: 0 at first, then 10, 20, 40 … 300 s.

    So no cause of an end makes more than six pods a minute after the third replacement, and in the end one
    in five minutes.
    """
    return _REPLACEMENTS.delay(replacements - FREE_REPLACEMENTS + 1)
