"""How a job went, in a bounded number of points that are spread over its whole life, however long that is. Pure."""

from dataclasses import dataclass

MAX_POINTS = 120
"""Enough for a picture, and some kilobytes in the job's status."""
FIRST_INTERVAL = 5.0
"""Seconds between the points of a young job; it doubles whenever the points get too many."""


@dataclass(frozen=True)
class HistorySample:
    """The job at one moment.

    Attributes:
        time: Unix seconds.
        step: global step.
        records: acknowledged records.
        nodes: running nodes by role.
    """

    time: float
    step: int
    nodes: dict[str, int]
    records: int = 0


@dataclass(frozen=True)
class History:
    """The points so far, oldest first, at least `interval` seconds apart."""

    interval: float = FIRST_INTERVAL
    points: tuple[HistorySample, ...] = ()


def extend_history(history: History, point: HistorySample) -> History:
    """Take a point in when it is time; every second one goes when there are too many."""
    if history.points and point.time < history.points[-1].time + history.interval:
        return history
    points = (*history.points, point)
    if len(points) > MAX_POINTS:
        return History(history.interval * 2, points[::2])
    return History(history.interval, points)
