"""What Pollux is asked about: jobs with their speed-ups, and how to weigh them; see `edl_workflows.scaling.pollux.optimizer`."""

from dataclasses import dataclass
from math import isfinite

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.policy import JobInfo
from edl_workflows.scaling.pollux.speedup import SpeedupTable


@dataclass(frozen=True)
class PolluxJob:
    """A job and what more replicas are worth to it.

    Attributes:
        info: its demands and bounds. Of `age` the restart penalty is made; `profilings` are not looked at.
        speedup: by the number of all its replicas; it never gets more than the table knows.
        restarts: how often it was re-allocated so far.
        weight: how much its speed counts beside the others'. Pollux's first version lowers it with the device time that a
            job has had.
        remaining: seconds of work that it has left, with one replica; None where it does not say how much it has to do.

    Raises:
        InvalidError: weight, restarts or what remains are negative or not numbers.
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
    """How jobs are weighed against each other and against restarts.

    Attributes:
        fairness: exponent of the power mean of the speed-ups: 1 is their sum, 0 their product, -1, the paper's, the harmonic
            mean; the lower, down to -10, the more the slow ones count.
        restart_seconds: what a re-allocated job loses.
        avoid_interference: at most one job that spans nodes on a node, since such jobs slow each other down.
        shortest_first: a job's speed counts the more, the more jobs have at least as much left to do as it, so that the mean
            completion time is short; see `edl_workflows.scaling.pollux.values`.

    Raises:
        InvalidError: a number is not one, `restart_seconds` is negative, or `fairness` out of its range.
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
"""For a short mean completion time, in place of fair speed-ups."""
