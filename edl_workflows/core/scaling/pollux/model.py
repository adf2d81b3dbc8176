"""The jobs and options of `edl_workflows.core.scaling.pollux.optimizer`."""

from dataclasses import dataclass
from math import isfinite

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policy import JobInfo
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable


@dataclass(frozen=True)
class PolluxJob:
    """A job, and how its speed grows with its replicas.

    Attributes:
        info: its demands and bounds. The restart penalty depends on `age`; `profilings` are ignored.
        speedup: its speed by the number of all its replicas; it never gets more replicas than the table has.
        restarts: how often it was re-allocated so far.
        weight: how much its speed counts relative to other jobs. (Pollux's first version lowers it with the
            device time that a job has used.)
        remaining: seconds of work left with one replica; None if unknown.

    Raises:
        InvalidError: weight, restarts or remaining are negative or not numbers.
    """

    info: JobInfo
    speedup: SpeedupTable
    restarts: int = 0
    weight: float = 1.0
    remaining: float | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.weight) and self.weight > 0):
            raise InvalidError(f"{self.info.key}: weight {self.weight} is not a number above 0")
        if self.restarts < 0:
            raise InvalidError(f"{self.info.key}: restarts {self.restarts} is below 0")
        if self.remaining is not None and not (isfinite(self.remaining) and self.remaining >= 0):
            raise InvalidError(f"{self.info.key}: remaining {self.remaining} is not a number from 0 up")


@dataclass(frozen=True)
class PolluxOptions:
    """Weights of jobs and restarts.

    Attributes:
        fairness: exponent of the power mean of the speed-ups: 1 is their sum, 0 their product, and -1, the
            paper's choice, their harmonic mean. With lower values, down to -10, slow jobs count more.
        restart_seconds: seconds that a re-allocated job loses.
        avoid_interference: at most one job that spans nodes on a node, since such jobs slow each other down.
        shortest_first: jobs with less work left count more, for a short mean completion time; see
            `edl_workflows.core.scaling.pollux.values`.

    Raises:
        InvalidError: `restart_seconds` is negative or not finite, or `fairness` is out of its range.
    """

    fairness: float = -1.0
    restart_seconds: float = 30.0
    avoid_interference: bool = True
    shortest_first: bool = False

    def __post_init__(self) -> None:
        if not -10 <= self.fairness <= 1:
            raise InvalidError(f"fairness: {self.fairness} is not a number between -10 and 1")
        if not (isfinite(self.restart_seconds) and self.restart_seconds >= 0):
            raise InvalidError(f"restart_seconds: {self.restart_seconds} is not a number from 0 up")


SHORTEST_FIRST = PolluxOptions(fairness=1.0, shortest_first=True)
"""For a short mean completion time instead of fair speed-ups."""
