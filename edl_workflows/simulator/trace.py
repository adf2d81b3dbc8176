"""Jobs of a cluster's trace as a workload: what is known of them is how many GPUs they had, and for how long.

Such a job is so much work: its GPUs times its seconds. With r of its g GPUs it is taken to run at r / g of its speed, and with
more at no more than that, so that it never gets faster than its trace shows. That is optimistic where a job would wait for
the slowest of its GPUs, and pessimistic where it could have used more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from edl_workflows.exceptions import InvalidError
from edl_workflows.simulator.application import Application, ValidationTrace
from edl_workflows.simulator.throughput import StepTime, ThroughputTable
from edl_workflows.simulator.workload import WorkloadJob

_EPOCHS = 10
"""Schedulers that ask how far a job is see it in so many steps."""
_GPU_BATCH = 1000
"""Examples that a GPU has of the batch when the job has all its GPUs; it makes the shares of fewer nearly even."""


@dataclass(frozen=True)
class ClusterJob:
    """A job that ran in a real cluster.

    Attributes:
        name: unique in the trace.
        submitted: seconds after the first.
        gpus: that it had.
        duration: seconds that it ran with them.

    Raises:
        InvalidError: a number makes no sense.
    """

    name: str
    submitted: float
    gpus: int
    duration: float

    def __post_init__(self) -> None:
        if not (self.gpus >= 1 and 0 < self.duration < inf and 0 <= self.submitted < inf):
            raise InvalidError(
                f"job {self.name}: {self.gpus} GPUs for {self.duration} s from {self.submitted} s on; "
                "give at least one GPU, a duration above 0 and a time from 0 up"
            )


def workload_of(jobs: Iterable[ClusterJob]) -> tuple[list[WorkloadJob], dict[str, Application]]:
    """The trace as a workload, and the applications that its jobs train; see the module."""
    workload, applications = [], dict[str, Application]()
    for job in jobs:
        name = f"{job.gpus} GPUs for {job.duration:g} s"
        if name not in applications:
            applications[name] = linear_application(name, job.gpus, job.duration)
        workload.append(WorkloadJob(job.name, job.submitted, name, job.gpus, job.gpus * _GPU_BATCH))
    return workload, applications


def linear_application(name: str, gpus: int, duration: float) -> Application:
    """An application that takes `duration` seconds on `gpus` GPUs, and on fewer longer in proportion.

    Args:
        name: of the application.
        gpus: beyond which it gets no faster.
        duration: in seconds.
    """
    # A step is a second on all GPUs. Gradients are nothing but noise, so that a batch is worth what it has of examples.
    done = [duration * (epoch + 1) / _EPOCHS for epoch in range(_EPOCHS)]
    validation = ValidationTrace(done, done, [0.0] * _EPOCHS, [1.0] * _EPOCHS)
    steps = {_GPU_BATCH: StepTime(1.0, 0.0), gpus * _GPU_BATCH: StepTime(float(gpus), 0.0)}
    return Application(
        name,
        {gpus * _GPU_BATCH: validation},
        ThroughputTable.of({(1,): steps}, {}),
        min_local_bsz=_GPU_BATCH,
        max_local_bsz=gpus * _GPU_BATCH,
    )
