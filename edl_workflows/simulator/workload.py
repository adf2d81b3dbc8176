"""The jobs of a run, as their users submit them."""

from dataclasses import dataclass
from math import isfinite

from edl_workflows.exceptions import InvalidError


@dataclass(frozen=True)
class WorkloadJob:
    """A job as its user submits it.

    Attributes:
        name: unique in the workload.
        submitted: seconds after the start of the run.
        application: what the job trains.
        replicas: requested number of replicas; ignored by schedulers that choose it.
        batch_size: batch size of all replicas together; ignored by schedulers that choose it.

    Raises:
        InvalidError: a number is out of its range.
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
                f"job {self.name}: {self.replicas} replicas, batch {self.batch_size}; "
                "give at least one of each"
            )
