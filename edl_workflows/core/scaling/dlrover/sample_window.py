"""The newest samples of a job in its present shape, and statistics over them.

A sample is of the present shape if it has exactly the present parameter servers and the present number of
workers. Only an unbroken sequence of such samples up to the newest one counts. So no advice is based on
the statistics of earlier advice: after one is carried out, the next one needs new samples.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from edl_workflows.core.scaling.dlrover.bounds import count_trainers, job_problems
from edl_workflows.core.scaling.dlrover.resources import (
    PS,
    TRAINERS,
    WORKER,
    Advice,
    OptimizerJob,
    OptimizerNode,
    empty_advice,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, mean, valid_samples

NEWEST = 5
"""Samples that the local optimizer looks at, as upstream."""
LEAST = 3
"""The fewest samples that advice is based on; Brain's algorithms look at exactly this number."""


@dataclass(frozen=True)
class SampleWindow:
    """The newest samples of a job.

    Attributes:
        job: the job.
        samples: samples of the present shape, oldest first; at least `LEAST`.
        before: the samples before them, oldest first.
        notes: which samples were dropped, and why.
    """

    job: OptimizerJob
    samples: tuple[JobSample, ...]
    before: tuple[JobSample, ...]
    notes: tuple[str, ...]

    @property
    def trainers(self) -> int:
        """The number of workers and the chief."""
        return count_trainers(self.job)

    @property
    def speed(self) -> float:
        """Mean steps a second."""
        return mean([sample.speed for sample in self.samples])

    def mean_cpu(self, *roles: str) -> dict[str, float]:
        """Node name → mean use of cores, for the nodes in all samples."""
        return {
            name: mean([node.cpu for sample in self.samples for node in sample.nodes if node.name == name])
            for name in sorted(frozenset.intersection(*(sample.names(*roles) for sample in self.samples)))
        }

    def most(self, amount: str, *roles: str) -> float:
        """The most cores (``cpu``) or MiB (``memory``) that a node used; 0 without nodes."""
        used = [node for sample in self.samples for node in sample.of(*roles)]
        return max((node.cpu if amount == "cpu" else node.memory for node in used), default=0.0)

    def ps_cpu(self, node: OptimizerNode) -> float:
        """A node's cores; 0 if it has no size."""
        return node.resource.cpu or 0.0

    def utilisation(self) -> float | None:
        """The largest fraction of its cores that a parameter server used; None if one has no size."""
        sizes = {node.name: self.ps_cpu(node) for node in self.job.of(PS)}
        if not all(size > 0 for size in sizes.values()):
            return None
        used = [(node.name, node.cpu) for sample in self.samples for node in sample.of(PS)]
        return max((cpu / sizes[name] for name, cpu in used), default=None)

    def speed_before(self) -> tuple[int, float] | None:
        """The number of workers before it last changed, and the mean speed then; None if it never changed."""
        earlier = [(len(sample.of(*TRAINERS)), sample.speed) for sample in reversed(self.before)]
        other = next((count for count, _ in earlier if count not in (0, self.trainers)), None)
        if other is None:
            return None
        start = next(index for index, (count, _) in enumerate(earlier) if count == other)
        speeds = [speed for count, speed in earlier[start : start + NEWEST] if count == other]
        return other, mean(speeds)


def sample_window(job: OptimizerJob, newest: int = NEWEST) -> SampleWindow | Advice:
    """The newest samples of the job in its present shape; empty advice that says so if there are too few."""
    if wrong := job_problems(job):
        return empty_advice(*wrong)
    if lacking := next((role for role in (PS, WORKER) if role not in job.roles), None):
        return empty_advice(f"the job has no role {lacking}")
    if unsettled := _unsettled(job):
        return empty_advice(unsettled, waiting=True)
    validation = valid_samples(job.samples)
    count = _present_run(job, validation.samples)
    start = len(validation.samples) - count
    if count < LEAST:
        note = f"{count} samples tell of the job as it is now, {LEAST} are needed"
        return empty_advice(note, *validation.problems, waiting=True)
    return SampleWindow(
        job, validation.samples[start:][-newest:], validation.samples[:start], validation.problems
    )


def _unsettled(job: OptimizerJob) -> str:
    """Why the job is not in its desired state; "" if it is."""
    for role in (PS, *TRAINERS):
        if role in job.roles:
            running_nodes = [node for node in job.of(role) if node.pending_since is None and not node.oom]
            if len(running_nodes) != job.roles[role].count:
                return f"{len(running_nodes)} of {job.roles[role].count} {role} nodes run"
    if not job.of(PS) or not job.of(*TRAINERS):
        return "the job has no parameter server or no worker"
    return ""


def _present_run(job: OptimizerJob, samples: Iterable[JobSample]) -> int:
    """How many of the newest samples are of the present shape."""
    present, count = frozenset(node.name for node in job.of(PS)), count_trainers(job)
    run_length = 0
    for sample in samples:
        same = sample.names(PS) == present and len(sample.of(*TRAINERS)) == count
        run_length = run_length + 1 if same else 0
    return run_length
