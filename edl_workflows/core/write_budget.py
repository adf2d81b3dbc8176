"""How often many writers may write if all of them together have a budget of writes."""

PROGRESS_SECONDS = 60
"""Least seconds between two writes of mere progress by the master of a job."""
WRITES_PER_SECOND = 10.0
"""Progress writes a second of all jobs of an installation, by default."""
MIN_WRITES_PER_SECOND = 0.001
"""Smallest budget: one write of all jobs together in 1,000 seconds."""
_REST = 0.75
"""The period becomes shorter only if the writers then use at most this part of the budget. So it does not
change to and fro when a few writers come and go."""


def choose_period(writers: int, writes_per_second: float, present: int = PROGRESS_SECONDS) -> int:
    """Seconds between two writes of each writer: `PROGRESS_SECONDS`, doubled until the budget suffices.

    Args:
        writers: how many there are.
        writes_per_second: the budget of all of them, more than 0.
        present: the period so far.
    """
    needed = _double_until(writers / writes_per_second)
    return max(needed, min(_double_until(present), _double_until(writers / (_REST * writes_per_second))))


def _double_until(seconds: float) -> int:
    period = PROGRESS_SECONDS
    while period < seconds:
        period *= 2
    return period
