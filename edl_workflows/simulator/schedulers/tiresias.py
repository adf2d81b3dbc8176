"""Tiresias (NSDI'19, as evaluated in the Pollux paper): jobs with the least service so far come first.

There are two first-in, first-out queues. A job starts in the first queue, and moves to the second one after
16 GPU hours. In the order of the queues, each job gets all the replicas that its user asks for, or none; a
job that gets none is preempted.
"""

from collections.abc import Mapping, Sequence

from edl_workflows.simulator.schedulers.scheduler import (
    ActiveJob,
    FixedBatchScheduler,
    SchedulerInputs,
    allocate_emptiest,
    free_gpus,
)

QUEUE_THRESHOLD = 16 * 3600.0
"""GPU seconds after which a job moves to the second queue, as in the paper's evaluation."""


class TiresiasScheduler(FixedBatchScheduler):
    def __init__(self, inputs: SchedulerInputs | None = None) -> None:
        super().__init__(inputs)
        self._demoted: list[str] = []
        """The names of the jobs in the second queue."""

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        """Admit jobs in the order of the queues; jobs that continue keep their nodes."""
        running = self._admit(jobs, sum(nodes.values()))
        allocations = {job.spec.name: job.held for job in running if job.held}
        free = free_gpus(nodes, allocations.values())
        return allocations | {
            job.spec.name: allocate_emptiest(free, job.spec.replicas) for job in running if not job.held
        }

    def _admit(self, jobs: Sequence[ActiveJob], gpus: int) -> list[ActiveJob]:
        """The jobs that get GPUs, in the order of the queues."""
        by_name = {job.spec.name: job for job in jobs}
        demoted = [name for name in self._demoted if name in by_name]
        demoted += [
            job.spec.name
            for job in jobs
            if job.held and job.spec.name not in demoted and job.attained_service >= QUEUE_THRESHOLD
        ]
        self._demoted = demoted
        admitted = []
        for job in [job for job in jobs if job.spec.name not in demoted] + [
            by_name[name] for name in demoted
        ]:
            if job.spec.replicas <= gpus:
                gpus -= job.spec.replicas
                admitted.append(job)
        return admitted
