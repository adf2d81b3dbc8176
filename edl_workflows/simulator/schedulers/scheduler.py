"""The contract of the simulator's schedulers, and schedulers that run live policies.

A scheduler of the simulator may know more than a live policy: `ActiveJob.application` shows the future, for
policies with an oracle. `PolicyScheduler` passes on only what a policy is told in a live cluster.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edl_workflows.core.scaling.paddle.fulfilment import FulfilmentJob, decide_fulfilment
from edl_workflows.core.scaling.paddle.nodes import FulfilmentNode
from edl_workflows.core.scaling.policy import JobInfo, NodeInfo, Policy
from edl_workflows.core.scaling.pollux.goodput_fit import FitCache
from edl_workflows.simulator.application import Application
from edl_workflows.simulator.job import BatchAgent, FixedBatch
from edl_workflows.simulator.workload import WorkloadJob

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class ActiveJob:
    """A job that is submitted and not complete.

    Attributes:
        spec: the job as submitted.
        application: what it trains.
        epoch: number of complete epochs.
        age: seconds since its submission.
        attained_service: GPU seconds that it held.
        restarts: number of restarts.
        held: the nodes of its replicas, in the order of ranks.
    """

    spec: WorkloadJob
    application: Application
    epoch: int
    age: float
    attained_service: float
    restarts: int
    held: Sequence[str]


class JobScheduler(Protocol):
    """Allocates GPUs once per interval. A scheduler is made for one run, and may keep state."""

    def agent(self, job: WorkloadJob, application: Application) -> BatchAgent:
        """What chooses the job's batch; called once for each job, before the run."""
        ...

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        """Allocate GPUs to the jobs.

        Args:
            jobs: in the order of the workload.
            nodes: node → GPUs available to jobs.

        Returns:
            Job name → the nodes of its replicas, in the order of ranks. A job that is missing gets nothing.
        """
        ...


@dataclass(frozen=True)
class SchedulerInputs:
    """The inputs of a new scheduler.

    Attributes:
        most_replicas: application → the most replicas that its jobs get, where that is limited.
        fits: a cache shared by the runs of a process, so that the same measurements are fitted only once.
    """

    most_replicas: Mapping[str, int] = field(default_factory=dict)
    fits: FitCache = field(default_factory=FitCache)


class FixedBatchScheduler:
    """Base of schedulers whose jobs train with the batch that their users chose."""

    def __init__(self, inputs: SchedulerInputs | None = None) -> None:
        self.inputs = inputs or SchedulerInputs()

    def agent(self, job: WorkloadJob, application: Application) -> BatchAgent:
        """The user's batch."""
        return FixedBatch(application, job.batch_size)


class PolicyScheduler(FixedBatchScheduler):
    """Runs a live policy. A job may get any number of GPUs from one to the number that its user requests."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        infos = {
            job.spec.name: JobInfo(job.spec.name, {GPU: 1.0}, max_replicas=job.spec.replicas, age=job.age)
            for job in jobs
        }
        free = {node: NodeInfo(node, {GPU: float(gpus)}) for node, gpus in nodes.items()}
        return self._policy.optimize(infos, free, {job.spec.name: job.held for job in jobs})


class FulfilmentScheduler(FixedBatchScheduler):
    """The cluster autoscaler's algorithm, with one instance per GPU. It ignores the cost of restarts."""

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        elastic_jobs = {
            job.spec.name: FulfilmentJob(
                {GPU: 1.0}, 1, job.spec.replicas, parallelism=max(len(job.held), 1), places=tuple(job.held)
            )
            for job in jobs
        }
        free = {node: FulfilmentNode({GPU: float(gpus), "pods": float(gpus)}) for node, gpus in nodes.items()}
        places = decide_fulfilment(elastic_jobs, free).places
        return {name: places.get(name, job.places) for name, job in elastic_jobs.items()}


def free_gpus(nodes: Mapping[str, int], held: Iterable[Collection[str]]) -> dict[str, int]:
    """Node → GPUs that none of these replicas use."""
    free = dict(nodes)
    for places in held:
        for node in places:
            free[node] -= 1
    return free


def allocate_emptiest(free: dict[str, int], replicas: int) -> list[str]:
    """Take GPUs for replicas on the nodes with the most free GPUs; of equals, on the first.

    Args:
        free: node → free GPUs, at least `replicas` in all; reduced by what is taken.
        replicas: number of replicas.
    """
    places: list[str] = []
    while len(places) < replicas:
        node = max(free, key=lambda name: free[name])
        count = min(free[node], replicas - len(places))
        places += [node] * count
        free[node] -= count
    return places
