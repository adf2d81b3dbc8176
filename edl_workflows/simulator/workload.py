"""The jobs of a run, as their users submit them, and workloads made from a cluster's trace.

In a cluster's trace, only the GPUs and the duration of each job are known. The work of such a job is its GPUs
times its seconds. With r of its g GPUs it is assumed to run at r / g of its speed, and with more than g not
faster. That is optimistic for a job whose replicas wait for the slowest one, and pessimistic for a job that
could use more GPUs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.application import Application, ValidationTrace
from edl_workflows.simulator.throughput import StepTime, ThroughputTable

_EPOCHS = 10
"""Number of epochs of a job from a trace. Schedulers see its progress in epochs."""
_GPU_BATCH = 1000
"""Examples per GPU when a job from a trace has all its GPUs. The number is large, so that the batch can be
divided nearly equally among fewer GPUs."""


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
            raise InvalidError(f"job {self.name}: submitted at {self.submitted}; give seconds of at least 0")
        if self.replicas < 1 or self.batch_size < 1:
            raise InvalidError(
                f"job {self.name}: {self.replicas} replicas, batch {self.batch_size}; "
                "give at least one of each"
            )


@dataclass(frozen=True)
class ClusterJob:
    """A job that ran in a real cluster.

    Attributes:
        name: unique in the trace.
        submitted: seconds after the first.
        gpus: the GPUs that it had.
        duration: the seconds that it ran with them.

    Raises:
        InvalidError: a number is out of its range.
    """

    name: str
    submitted: float
    gpus: int
    duration: float

    def __post_init__(self) -> None:
        if not (self.gpus >= 1 and 0 < self.duration < inf and 0 <= self.submitted < inf):
            raise InvalidError(
                f"job {self.name}: {self.gpus} GPUs for {self.duration} s from {self.submitted} s on; "
                "give at least one GPU, a duration above 0 and a time of at least 0"
            )


def workload_of(jobs: Iterable[ClusterJob]) -> tuple[list[WorkloadJob], dict[str, Application]]:
    """The trace as a workload, and the application (the training program and its model) of each job; see the
    module."""
    workload, applications = [], dict[str, Application]()
    for job in jobs:
        name = f"{job.gpus} GPUs for {job.duration:g} s"
        if name not in applications:
            applications[name] = linear_application(name, job.gpus, job.duration)
        workload.append(WorkloadJob(job.name, job.submitted, name, job.gpus, job.gpus * _GPU_BATCH))
    return workload, applications


def linear_application(name: str, gpus: int, duration: float) -> Application:
    """An application that takes `duration` seconds on `gpus` GPUs, and proportionally longer on fewer."""
    # A step takes a second on all GPUs. Gradients are pure noise, so the worth of a batch is proportional to
    # its size.
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
