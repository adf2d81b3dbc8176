"""Small applications and workloads, and a scheduler with scripted decisions."""

from collections.abc import Callable, Mapping, Sequence

from edl_workflows.simulator.application import Application, ValidationTrace
from edl_workflows.simulator.job import BatchAgent, FixedBatch
from edl_workflows.simulator.schedulers.scheduler import ActiveJob
from edl_workflows.simulator.throughput import Placement, StepTime, ThroughputTable
from edl_workflows.simulator.workload import WorkloadJob

Shares = Mapping[str, Sequence[str]]


def application(name: str = "digits", *, epochs: int = 2, steps: float = 100.0) -> Application:
    """Epochs with this many steps of one second. Noise dominates: a batch of 20 is worth two of 10."""
    progress = [steps * (epoch + 1) for epoch in range(epochs)]
    noise = ([0.0] * epochs, [1.0] * epochs)
    validation = {
        10: ValidationTrace(progress, progress, *noise),
        40: ValidationTrace(progress, [done / 4 for done in progress], *noise),
    }
    placements: dict[Placement, dict[int, StepTime]] = {
        placement: {size: StepTime(1.0, 0.25) for size in (5, 10)} for placement in ((1,), (2,), (1, 1), (4,))
    }
    return Application(
        name, validation, ThroughputTable.of(placements, {}), min_local_bsz=5, max_local_bsz=10
    )


def job(name: str, submitted: float = 0.0, replicas: int = 1, batch_size: int = 10) -> WorkloadJob:
    """A job of `application`."""
    return WorkloadJob(name, submitted, "digits", replicas, batch_size)


class Scripted:
    """A scheduler whose decisions are those of a function."""

    def __init__(self, shares: Callable[[Sequence[ActiveJob], Mapping[str, int]], Shares]) -> None:
        self._shares = shares

    def agent(self, job: WorkloadJob, application: Application) -> BatchAgent:
        """The user's batch."""
        return FixedBatch(application, job.batch_size)

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Shares:
        """The result of the function."""
        return self._shares(jobs, nodes)


def always(**shares: Sequence[str]) -> Scripted:
    """A scheduler that always gives each job the same nodes."""
    return Scripted(lambda jobs, nodes: {one.spec.name: shares.get(one.spec.name, ()) for one in jobs})
