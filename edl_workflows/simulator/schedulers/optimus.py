"""Optimus (EuroSys'18), with an oracle, as in the Pollux paper: the next GPU goes to the job for which it
saves the most time.

Each job gets one GPU while there are any. Each further GPU goes to the job whose remaining training it
shortens most:

    (T(r) - T(r + 1)) * remaining iterations

where T(r) is the duration of a step with r replicas on as few nodes as possible. The oracle knows T and the
remaining iterations. A job whose number of replicas does not change keeps its nodes.
"""

from collections.abc import Mapping, Sequence

from edl_workflows.simulator.schedulers.scheduler import (
    ActiveJob,
    FixedBatchScheduler,
    SchedulerInputs,
    allocate_emptiest,
    free_gpus,
)


class OptimusScheduler(FixedBatchScheduler):
    """A job gets at most one replica for each smallest mini-batch of its batch."""

    def __init__(self, inputs: SchedulerInputs | None = None) -> None:
        super().__init__(inputs)
        self._times: dict[tuple[str, int, int, int], float] = {}

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        """Decide the numbers of replicas by gain, then place the jobs, the smallest first."""
        replicas = self._share(jobs, nodes)
        allocations = {
            job.spec.name: job.held for job in jobs if job.held and len(job.held) == replicas[job.spec.name]
        }
        free = free_gpus(nodes, allocations.values())
        for name in sorted(replicas, key=lambda job: replicas[job]):
            if name not in allocations:
                allocations[name] = allocate_emptiest(free, replicas[name])
        return allocations

    def _share(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> dict[str, int]:
        """Job → its number of replicas."""
        gpus, node_gpus = sum(nodes.values()), max(nodes.values(), default=0)
        replicas = {job.spec.name: int(order < gpus) for order, job in enumerate(jobs)}
        gpus -= sum(replicas.values())
        by_name = {job.spec.name: job for job in jobs}
        gains = {
            name: self._gain(job, replicas[name], node_gpus) if replicas[name] else 0.0
            for name, job in by_name.items()
        }
        for _ in range(gpus if gains else 0):
            name = max(gains, key=lambda job: gains[job])
            if gains[name] <= 0:
                break
            replicas[name] += 1
            gains[name] = self._gain(by_name[name], replicas[name], node_gpus)
        return replicas

    def _gain(self, job: ActiveJob, replicas: int, node_gpus: int) -> float:
        """Seconds that one more replica saves."""
        application, batch_size = job.application, job.spec.batch_size
        most = self.inputs.most_replicas.get(application.name, batch_size // application.min_local_bsz)
        if replicas + 1 > most:
            return 0.0
        last = application.epochs - 1
        remaining = 1.0
        if job.epoch < last:
            remaining = application.iterations(batch_size, last) - application.iterations(
                batch_size, job.epoch
            )
        saved = self._time(job, replicas, node_gpus) - self._time(job, replicas + 1, node_gpus)
        return saved * remaining

    def _time(self, job: ActiveJob, replicas: int, node_gpus: int) -> float:
        key = (job.application.name, job.spec.batch_size, replicas, node_gpus)
        if key not in self._times:
            full, rest = divmod(replicas, node_gpus)
            placement = (node_gpus,) * full + ((rest,) if rest else ())
            split = job.application.split(job.spec.batch_size, replicas)
            step = job.application.step_time(placement, split.local_bsz)
            self._times[key] = step.accumulated(split.accumulation)
        return self._times[key]
