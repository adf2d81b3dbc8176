"""Pollux in the simulator: jobs that fit their own goodput models, allocated by the live optimizer.

As in the artifact, a job starts with the initial batch on one GPU, and may have twice the replicas with which
it has run.
"""

from collections.abc import Mapping, Sequence

from edl_workflows.core.scaling.policy import JobInfo, NodeInfo
from edl_workflows.core.scaling.pollux.goodput import BatchLimits, GoodputModel, GradParams, PerfParams
from edl_workflows.core.scaling.pollux.goodput_fit import FitCache, StepMeasurement
from edl_workflows.core.scaling.pollux.hints import SchedulingHints, best_measured
from edl_workflows.core.scaling.pollux.model import SHORTEST_FIRST, PolluxJob, PolluxOptions
from edl_workflows.core.scaling.pollux.optimizer import optimize_allocations
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable, SpeedupTables
from edl_workflows.simulator.application import Application, BatchSplit, GradientNoise
from edl_workflows.simulator.job import BatchAgent, FixedBatch, TrainingMeasurement
from edl_workflows.simulator.schedulers.scheduler import GPU, ActiveJob, SchedulerInputs
from edl_workflows.simulator.throughput import Placement
from edl_workflows.simulator.workload import WorkloadJob

MOST_REPLICAS = 64
"""Most replicas of a job, as in the artifact, which has no measurements for more."""


class AdaptiveBatch:
    """The agent of a job that chooses its batch by goodput.

    Args:
        application: what the job trains; only its batch limits are used.
        fits: a cache, shared by jobs.
    """

    def __init__(self, application: Application, fits: FitCache) -> None:
        self._application = application
        self._fits = fits
        self.limits = BatchLimits(
            application.init_batch_size,
            application.max_batch_size,
            (application.min_local_bsz, application.max_local_bsz),
        )
        self._measured: dict[tuple[int, int, int], StepMeasurement] = {}
        """(One node or several, replicas, mini-batch) → its first measurement."""
        self._stale = False
        """Whether there are measurements that are not in `_perf`."""
        self._perf: PerfParams | None = None
        self._gradient: GradientNoise | None = None
        self._model: GoodputModel | None = None
        self._splits: dict[tuple[int, int], BatchSplit] = {}
        """(Nodes, replicas) → the best batch by the current model."""
        self.profiled = 0
        """The most replicas with which the job has run."""

    @property
    def model(self) -> GoodputModel | None:
        """The job's goodput model; None before it has run."""
        if self._gradient is None:
            return None
        if self._model is None:
            grad = GradParams(self._gradient.sqr, self._gradient.var)
            self._model = GoodputModel(self._perf or self._learned(), grad, self.limits)
        return self._model

    def refreshed(self) -> GoodputModel | None:
        """The model with all measurements; called once per interval, since fitting is expensive."""
        if self._stale:
            self._learned()
            self._forget()
        return self.model

    def split(self, placement: Placement) -> BatchSplit:
        """The batch with the best goodput; the smallest batch before there is a model."""
        nodes, replicas = min(len(placement), 2), sum(placement)
        model = self.model
        if model is None:
            batch_size = max(self.limits.initial, self.limits.atomic[0] * replicas)
            return self._application.split(batch_size, replicas)
        if (nodes, replicas) not in self._splits:
            best = model.best(nodes, replicas)
            self._splits[nodes, replicas] = BatchSplit(int(best.atomic), int(best.accumulation))
        return self._splits[nodes, replicas]

    def observe(self, measurement: TrainingMeasurement) -> None:
        """Keep only the first measurement of each placement and batch, but always the newest gradient."""
        nodes, replicas = min(len(measurement.placement), 2), sum(measurement.placement)
        key = (nodes, replicas, measurement.split.local_bsz)
        if key in self._measured and measurement.gradient == self._gradient:
            return
        if key not in self._measured:
            step = measurement.step
            self._measured[key] = StepMeasurement(*key, step.total, step.total - step.sync)
            self._stale = True
        self.profiled = max(self.profiled, replicas)
        self._gradient = measurement.gradient
        self._forget()

    def _learned(self) -> PerfParams:
        self._perf = self._fits.fit(self._measured.values())
        self._stale = False
        return self._perf

    def _forget(self) -> None:
        """Clear the caches that depend on the model."""
        self._model = None
        self._splits = {}


class PolluxScheduler:
    """Pollux.

    Attributes:
        options: how jobs and restarts are weighed.
        history: whether a job knows what earlier jobs of its application have measured.
    """

    options = PolluxOptions()
    history = False

    def __init__(self, inputs: SchedulerInputs | None = None) -> None:
        self._inputs = inputs or SchedulerInputs()
        self._agents: dict[str, AdaptiveBatch] = {}
        self._speedups = SpeedupTables()
        self._reported: dict[str, dict[str, SchedulingHints]] = {}
        """Application → job → its last hints; in the order of the jobs' first reports."""

    def agent(self, job: WorkloadJob, application: Application) -> BatchAgent:
        """An agent that adapts the batch, unless the application's replicas are limited."""
        if application.name in self._inputs.most_replicas:
            return FixedBatch(application, job.batch_size)
        self._agents[job.name] = AdaptiveBatch(application, self._inputs.fits)
        return self._agents[job.name]

    def schedule(self, jobs: Sequence[ActiveJob], nodes: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        """Allocate by the measurements of jobs and, with `history`, of earlier jobs of the same
        application."""
        hints = {job.spec.name: self._hints(job) for job in jobs}
        if self.history:
            hints = self._with_former(jobs, hints)
        tables = self._speedups.tables(
            {
                name: (job_hints.model, MOST_REPLICAS)
                for name, job_hints in hints.items()
                if job_hints.model is not None
            }
        )
        asked = [self._asked(job, hints[job.spec.name], tables.get(job.spec.name)) for job in jobs]
        free = [NodeInfo(node, {GPU: float(gpus)}) for node, gpus in nodes.items()]
        return optimize_allocations(asked, free, {job.spec.name: job.held for job in jobs}, self.options)

    def _hints(self, job: ActiveJob) -> SchedulingHints:
        """The hints that a job would report. No oracle is needed: a job declares its epochs and records."""
        name, application = job.spec.name, job.application
        if (agent := self._agents.get(name)) is None:
            return SchedulingHints()
        left = application.progress_after(application.epochs) - application.progress_after(job.epoch)
        return SchedulingHints(
            agent.refreshed(), agent.profiled, left * application.init_batch_size, agent.limits
        )

    def _with_former(
        self, jobs: Sequence[ActiveJob], hints: Mapping[str, SchedulingHints]
    ) -> dict[str, SchedulingHints]:
        """The hints with what other jobs of the application, complete ones included, have reported so far."""
        for job in jobs:
            self._reported.setdefault(job.application.name, {})[job.spec.name] = hints[job.spec.name]
        former = {
            name: best_measured(reversed(list(reports.values()))) for name, reports in self._reported.items()
        }
        return {
            job.spec.name: hints[job.spec.name].after(former[job.application.name], MOST_REPLICAS)
            for job in jobs
        }

    def _asked(self, job: ActiveJob, hints: SchedulingHints, table: SpeedupTable | None) -> PolluxJob:
        name, application = job.spec.name, job.application
        most = self._inputs.most_replicas.get(application.name, 1)
        if name in self._agents:
            most = max(1, 2 * hints.profiled)
            most = min(most, MOST_REPLICAS, application.max_batch_size // application.min_local_bsz)
        info = JobInfo(name, {GPU: 1.0}, min_replicas=1, max_replicas=most, age=job.age)
        return PolluxJob(
            info,
            table or SpeedupTable.linear(most),
            restarts=job.restarts,
            remaining=hints.remaining_seconds if self.options.shortest_first else None,
        )


class ShortestFirstScheduler(PolluxScheduler):
    """Pollux that prefers jobs with the least work left."""

    options = SHORTEST_FIRST


class PolluxHistoryScheduler(PolluxScheduler):
    """Pollux with the measurements of earlier jobs."""

    history = True


class ShortestFirstHistoryScheduler(ShortestFirstScheduler):
    """Pollux that prefers jobs with the least work left, with the measurements of earlier jobs."""

    history = True
