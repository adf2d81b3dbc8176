"""The job's life as points over time. The master has up to `MAX_POINTS`; what is stored, and what the status
of a running job shows, is a sample of a bounded size, since both are written again and again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from edl_workflows.core.jobs.elastic_job.model import HistoryPoint
from edl_workflows.core.protocol.metrics import select_evenly

MAX_POINTS = 120
"""Enough for a plot."""
FIRST_INTERVAL = 5.0
"""Seconds between the first points; doubled whenever there are too many."""
STORED_BYTES = 1_000
"""Of the points that the next master goes on from."""
SHOWN_POINTS = 20
SHOWN_BYTES = 2_000
"""Of the points in the status while the job runs."""
ENDED_BYTES = 64_000
"""Of the points in the status of a job that has ended; they are written once."""
FEWEST_POINTS = 4
"""If not so many fit with their metrics, the metrics are left out."""
_POINT_BYTES, _NODE_BYTES, _METRIC_BYTES = 100, 10, 30
"""Most bytes of a point as JSON, of each of its roles, and of each of its metrics, without their names."""


@dataclass(frozen=True)
class HistorySample:
    """The job at one moment.

    Attributes:
        time: Unix seconds.
        step: global step.
        records: acknowledged records.
        nodes: running nodes by role.
        metrics: values of metrics that the program reported, see `edl_workflows.core.protocol.metrics`.
    """

    time: float
    step: int
    nodes: dict[str, int]
    records: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As the status shows it."""
        time = datetime.fromtimestamp(round(self.time), UTC)
        point = HistoryPoint(
            time=time, step=self.step, records=self.records, nodes=self.nodes, metrics=self.metrics
        )
        return point.to_dict()

    @property
    def most_bytes(self) -> int:
        """An upper bound of its size as JSON."""
        return _POINT_BYTES + _size(self.nodes, _NODE_BYTES) + _size(self.metrics, _METRIC_BYTES)


@dataclass(frozen=True)
class History:
    """The points so far, oldest first, at least `interval` seconds apart."""

    interval: float = FIRST_INTERVAL
    points: tuple[HistorySample, ...] = ()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that any point has, in the order of their appearance."""
        return tuple(dict.fromkeys(name for point in self.points for name in point.metrics))

    @property
    def stored(self) -> "History":
        """What the next master goes on from."""
        return History(self.interval, self.select(MAX_POINTS, STORED_BYTES))

    def select(self, most_points: int, most_bytes: int) -> tuple[HistorySample, ...]:
        """Points that are evenly spread, the first and the last among them, of a bounded size as JSON."""
        points = self.points
        if not points or len(points) <= FEWEST_POINTS // 2:
            return points
        size = max(points[0].most_bytes, points[-1].most_bytes)
        if size * FEWEST_POINTS > most_bytes:
            points = tuple(replace(point, metrics={}) for point in points)
            size = max(points[0].most_bytes, points[-1].most_bytes)
        return tuple(select_evenly(points, max(2, min(most_points, most_bytes // size))))


def extend_history(history: History, point: HistorySample) -> History:
    """Add a point if it is due; every second point is dropped when there are too many."""
    if history.points and point.time < history.points[-1].time + history.interval:
        return history
    points = (*history.points, point)
    if len(points) > MAX_POINTS:
        return History(history.interval * 2, points[::2])
    return History(history.interval, points)


def _size(numbers: Mapping[str, float], each: int) -> int:
    return sum(len(name) + each for name in numbers)
