"""Histograms of durations that pure code counts, for export at a scrape."""

from bisect import bisect_left
from dataclasses import dataclass, field

from edl_workflows.core.monitoring.metric import PAUSES


@dataclass
class DurationCounts:
    """How many durations there were, by length.

    Attributes:
        limits: upper limits of the buckets, in seconds, ascending.
        counts: durations in each bucket; the last one has those above all limits.
        total: the sum of all durations, in seconds.
    """

    limits: tuple[float, ...] = PAUSES
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.limits) + 1)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.limits, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus has them: each limit with the number of durations up to it."""
        names = [*(str(float(limit)) for limit in self.limits), "+Inf"]
        return [(name, float(sum(self.counts[: index + 1]))) for index, name in enumerate(names)]
