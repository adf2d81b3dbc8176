"""The jobs of a run, as they are submitted."""

from dataclasses import dataclass
from math import isfinite

from edl_workflows.exceptions import InvalidError


@dataclass(frozen=True)
class WorkloadJob:
    """A job as its user submits it.

    Attributes:
        name: unique in the workload.
        submitted: seconds after the begin of the run.
        application: what it trains.
        replicas: how many the user asks for. A scheduler that decides this itself ignores it.
        batch_size: of all replicas together. A scheduler that decides this itself ignores it.

    Raises:
        InvalidError: a number is missing, negative or not one.
    """

    name: str
    submitted: float
    application: str
    replicas: int
    batch_size: int

    def __post_init__(self) -> None:
        if not (isfinite(self.submitted) and self.submitted >= 0):
            raise InvalidError(f"job {self.name}: submitted at {self.submitted}; give seconds from 0 up")
        if self.replicas < 1 or self.batch_size < 1:
            raise InvalidError(
                f"job {self.name}: {self.replicas} replicas, batch {self.batch_size}; give at least one of each"
            )
