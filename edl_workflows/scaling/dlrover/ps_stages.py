"""The stages of a job of parameter servers and workers, and what is asked of an optimizer at each (DLRover's
JobResourceOptimizer).

CREATE → WORKER_INITIAL → PS_INITIAL → RUNNING, never back:

- CREATE: nothing is known; one parameter server and one worker, as far as the user leaves it open.
- WORKER_INITIAL: there are statistics of that worker; more workers, so that what parameter servers need can be told.
- PS_INITIAL: there are statistics of several workers; parameter servers for all that the limits hold.
- RUNNING: whatever holds the job up: hot parameter servers (at most once an hour), then workers.

Upstream's optimizers in cluster mode are asked for a stage that Brain does not know; here all speak of the same `OptimizerStage`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from edl_workflows.scaling.dlrover import local_optimizer
from edl_workflows.scaling.dlrover.resources import PS, WORKER, OptimizerJob, ResourcePlan

PS_REST = 3_600.0
"""Seconds between two changes of parameter servers: each costs a checkpoint and a restart."""


class OptimizerStage(StrEnum):
    """Where a job is (upstream's JobOptStage)."""

    CREATE = "job_stage_create"
    WORKER_INITIAL = "job_stage_worker_initial"
    PS_INITIAL = "job_stage_ps_initial"
    RUNNING = "job_stage_running"


class WorkerPhase(StrEnum):
    """How careful a plan for workers is: large steps at first, small ones once the job is known."""

    INITIAL = "initial"
    SAMPLE = "sample"
    STABLE = "stable"


@dataclass(frozen=True)
class OptimizerQuestion:
    """What an optimizer is asked.

    Attributes:
        stage: of the job.
        phase: for workers.
        ps_may_change: False soon after the last change of parameter servers.
    """

    stage: OptimizerStage
    phase: WorkerPhase = WorkerPhase.INITIAL
    ps_may_change: bool = True


Optimizer = Callable[[OptimizerQuestion, OptimizerJob], ResourcePlan]
"""Answers for one job; `optimize_locally` is one, a client of the Brain service another."""


@dataclass(frozen=True)
class StageProgress:
    """How far a job is.

    Attributes:
        stage: that is asked next.
        ps_changed_at: Unix seconds of the last plan that changed parameter servers; None if there was none.
        sampled: whether RUNNING has had its first plan for workers.
    """

    stage: OptimizerStage = OptimizerStage.CREATE
    ps_changed_at: float | None = None
    sampled: bool = False

    def question(self, now: float) -> OptimizerQuestion:
        """What is to be asked now."""
        rested = self.ps_changed_at is None or now - self.ps_changed_at >= PS_REST
        phase = WorkerPhase.INITIAL
        if self.stage is OptimizerStage.RUNNING:
            phase = WorkerPhase.STABLE if self.sampled else WorkerPhase.SAMPLE
        return OptimizerQuestion(self.stage, phase, self.stage is not OptimizerStage.RUNNING or rested)


_NEXT = {
    OptimizerStage.CREATE: OptimizerStage.WORKER_INITIAL,
    OptimizerStage.WORKER_INITIAL: OptimizerStage.PS_INITIAL,
    OptimizerStage.PS_INITIAL: OptimizerStage.RUNNING,
    OptimizerStage.RUNNING: OptimizerStage.RUNNING,
}


def advance_stage(
    progress: StageProgress, job: OptimizerJob, now: float, optimize: Optimizer
) -> tuple[ResourcePlan, StageProgress]:
    """The plan for now, and how far the job is then. The stage stays while its statistics are still missing.

    Args:
        progress: from the last call; `Progress()` for a new job.
        job: as it is.
        now: Unix seconds.
        optimize: who is asked.
    """
    question = progress.question(now)
    plan = optimize(question, job)
    if plan.waiting:
        return plan, progress
    after = replace(progress, stage=_NEXT[question.stage])
    if question.stage is OptimizerStage.CREATE:
        return plan, after
    if plan.changes(job, PS):
        after = replace(after, ps_changed_at=now if math.isfinite(now) else progress.ps_changed_at)
    if question.stage is OptimizerStage.RUNNING and plan.changes(job, WORKER):
        after = replace(after, sampled=True)
    return plan, after


def optimize_locally(question: OptimizerQuestion, job: OptimizerJob) -> ResourcePlan:
    """The local optimizer's answer."""
    match question.stage:
        case OptimizerStage.CREATE:
            return local_optimizer.create_plan(job)
        case OptimizerStage.WORKER_INITIAL:
            return local_optimizer.worker_plan(job)
        case OptimizerStage.PS_INITIAL:
            return local_optimizer.ps_initial_plan(job)
        case OptimizerStage.RUNNING:
            return local_optimizer.running_plan(job, ps_may_change=question.ps_may_change)
