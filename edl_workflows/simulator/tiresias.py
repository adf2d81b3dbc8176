"""Tiresias: the jobs that had least so far come first (NSDI'19; as the Pollux paper evaluates it).

Jobs stand in two queues, each in the order in which they came to it. A job begins in the first and goes to the second when
it has had 16 GPU hours. In that order each job gets all the replicas that its user asks for, or none; a job that is passed
over is preempted.
"""

from collections.abc import Mapping, Sequence

from edl_workflows.simulator.scheduler import (
    ActiveJob,
    FixedBatchScheduler,
    SchedulerInputs,
    free_gpus,
    take_emptiest,
)

QUEUE_THRESHOLD = 16 * 3600.0
"""GPU seconds after which a job goes to the second queue; the value of the paper's evaluation."""


class TiresiasScheduler(FixedBatchScheduler):
    """Two queues by attained service; see the module."""

    def __init__(self, inputs: SchedulerInputs | None = None) -> None:
        super().__init__(inputs)
        self._demoted: list[str] = []
        """The second queue."""

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        """The order of the queues decides who runs; those who go on stay where they are."""
        running = self._admit(jobs, sum(nodes.values()))
        found = {job.spec.name: job.held for job in running if job.held}
        free = free_gpus(nodes, found.values())
        return found | {
            job.spec.name: take_emptiest(free, job.spec.replicas) for job in running if not job.held
        }

    def _admit(self, jobs: Sequence[ActiveJob], gpus: int) -> list[ActiveJob]:
        """Those for whom there are GPUs, in the order of the queues."""
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
