"""The cluster autoscaler's planner in the simulator: jobs of one GPU up to what their users ask for, the least fulfilled first."""

from collections.abc import Mapping, Sequence

from edl_workflows.scaling.paddle import fulfilment
from edl_workflows.scaling.paddle.nodes import FulfilmentNode
from edl_workflows.simulator.application import Application
from edl_workflows.simulator.job import BatchAgent, FixedBatch
from edl_workflows.simulator.scheduler import GPU, ActiveJob
from edl_workflows.simulator.workload import WorkloadJob


class FulfilmentScheduler:
    """`edl_workflows.scaling.paddle.fulfilment`, with one instance a GPU. It does not regard what a restart costs."""

    def agent(self, job: WorkloadJob, application: Application) -> BatchAgent:
        """The user's batch."""
        return FixedBatch(application, job.batch_size)

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        """The plan's places."""
        asked = {
            job.spec.name: fulfilment.FulfilmentJob(
                {GPU: 1.0}, 1, job.spec.replicas, parallelism=max(len(job.held), 1), places=tuple(job.held)
            )
            for job in jobs
        }
        free = {node: FulfilmentNode({GPU: float(gpus), "pods": float(gpus)}) for node, gpus in nodes.items()}
        places = fulfilment.plan_fulfilment(asked, free).places
        return {name: places.get(name, job.places) for name, job in asked.items()}
