"""Jobs to advise on, and a model of training that says what would be measured of them."""

from dataclasses import dataclass, replace

from edl_workflows.core.scaling.dlrover.resources import (
    PS,
    TRAINERS,
    WORKER,
    NodeSize,
    OptimizerJob,
    OptimizerRole,
    ResourceLimits,
    UserBounds,
    empty_advice,
    follow_advice,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample

GIB = 1024.0


def job(
    ps: int = 1,
    workers: int = 1,
    *,
    ps_size: NodeSize | None = None,
    worker_size: NodeSize | None = None,
    limits: ResourceLimits | None = None,
    ps_bounds: UserBounds | None = None,
    worker_bounds: UserBounds | None = None,
) -> OptimizerJob:
    """A job whose wanted nodes all run, of 8 cores and 8 GiB each if nothing is said."""
    size = NodeSize(8, 8 * GIB)
    roles = {
        PS: OptimizerRole(ps, ps_size or size, bounds=ps_bounds or UserBounds()),
        WORKER: OptimizerRole(workers, worker_size or size, bounds=worker_bounds or UserBounds()),
    }
    return follow_advice(
        OptimizerJob("job", roles, limits or ResourceLimits(1000, 1000 * GIB)), empty_advice()
    )


def fixed(of: OptimizerJob, role: str) -> OptimizerJob:
    """The job with ``autoScale: false`` for one role."""
    return replace(of, roles={**of.roles, role: replace(of.roles[role], auto_scale=False)})


def node(role: str, number: int = 0) -> str:
    """Name of a node of the job."""
    return f"job-edljob-{role}-{number}"


@dataclass(frozen=True)
class Training:
    """Asynchronous training that the busiest parameter server holds up.

    Attributes:
        worker_cpu: cores that a worker uses at full speed.
        ps_cpu: cores that it makes all parameter servers use then.
        skew: how much more load the first parameter server has than each other; 0 is none.
        model: MiB that all parameter servers hold.
        worker_memory: MiB that a worker uses.
        rate: steps per second of one worker at full speed.
    """

    worker_cpu: float = 2.0
    ps_cpu: float = 1.0
    skew: float = 0.0
    model: float = 2 * GIB
    worker_memory: float = 2 * GIB
    rate: float = 10.0

    def sample(self, of: OptimizerJob, time: float) -> JobSample:
        """What is measured of a job whose wanted nodes all run."""
        servers, workers = of.of(PS), of.of(*TRAINERS)
        weights = [1 + self.skew] + [1.0] * (len(servers) - 1)
        demand = [len(workers) * self.ps_cpu * weight / sum(weights) for weight in weights]
        speed = min(
            [1.0, *((n.resource.cpu or 0) / d for n, d in zip(servers, demand, strict=True) if d > 0)]
        )
        used = [
            NodeSample(n.name, n.role, d * speed, self.model / len(servers))
            for n, d in zip(servers, demand, strict=True)
        ]
        used += [NodeSample(n.name, n.role, self.worker_cpu * speed, self.worker_memory) for n in workers]
        return JobSample(time, int(time), len(workers) * self.rate * speed, tuple(used))

    def measured(self, of: OptimizerJob, count: int = 5) -> OptimizerJob:
        """The job with so many more samples, 30 s apart."""
        start = max((sample.time for sample in of.samples), default=0.0)
        new = tuple(self.sample(of, start + 30 * (i + 1)) for i in range(count))
        return replace(of, samples=of.samples + new)
