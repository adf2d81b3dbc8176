"""Losses that happen together, as those of a rack, are answered together: with one training group and one
request for pods. Pure.

Reports of a thousand members that are lost at once arrive within a second or so, and a training group that is
formed again with each of them costs all members more than a short wait. In a small job nothing waits.
"""

import math
from dataclasses import dataclass

SECONDS_A_NODE = 0.001
"""Seconds to wait for further losses after each loss, for each node of the job."""
GROUP_SECONDS, POD_SECONDS = 0.1, 0.5
"""The wait is at least so long: before survivors form a group, and before pods are requested, which take
seconds to start anyway."""
MOST_PAUSES = 5
"""After the first loss, the wait is at most so many times as long."""
LEAST_NODES = 32
"""A job with fewer nodes does not wait."""


@dataclass(frozen=True)
class LossBatch:
    """Losses that are not answered yet.

    Attributes:
        count: how many.
        first, newest: Unix seconds at which the first and the newest of them were noted.
    """

    count: int = 0
    first: float = 0.0
    newest: float = 0.0

    def note_count(self, count: int, now: float) -> "LossBatch":
        """The batch with the present number of losses."""
        if count == self.count:
            return self
        return LossBatch(count, self.first if self.count else now, now) if count else LossBatch()

    def due(self, nodes: int, least: float) -> float:
        """Unix seconds at which it is to be answered; `-inf` if at once.

        Args:
            nodes: how many nodes the job wants.
            least: `GROUP_SECONDS` or `POD_SECONDS`.
        """
        if nodes < LEAST_NODES or not self.count:
            return -math.inf
        pause = max(least, nodes * SECONDS_A_NODE)
        return min(self.newest + pause, self.first + MOST_PAUSES * pause)
