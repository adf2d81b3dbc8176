"""The stages of a job with parameter servers, as in DLRover's JobResourceOptimizer.

A job passes through them in order: CREATE → WORKER_INITIAL → PS_INITIAL → RUNNING.

- CREATE: nothing is known. One parameter server and one worker, unless the user says otherwise.
- WORKER_INITIAL: there are statistics of one worker. Workers are added, to learn what parameter servers need.
- PS_INITIAL: there are statistics of several workers. Parameter servers are advised for all workers that the
  limits allow.
- RUNNING: bottlenecks are removed: first hot parameter servers (at most once an hour), then a lack of
  workers.

In cluster mode, upstream's optimizers send the Brain a stage that it does not know; here both use
`OptimizerStage`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from edl_workflows.core.scaling.dlrover import local_optimizer
from edl_workflows.core.scaling.dlrover.resources import PS, WORKER, Advice, OptimizerJob

PS_REST = 3_600.0
"""Seconds between two changes of parameter servers: each costs a checkpoint and a restart."""


class OptimizerStage(StrEnum):
    """The stage of a job (upstream: JobOptStage)."""

    CREATE = "job_stage_create"
    WORKER_INITIAL = "job_stage_worker_initial"
    PS_INITIAL = "job_stage_ps_initial"
    RUNNING = "job_stage_running"


class WorkerPhase(StrEnum):
    """How much the advice may change the number of workers: in large steps first, in small ones once a good
    number is known."""

    INITIAL = "initial"
    SAMPLE = "sample"
    STABLE = "stable"


@dataclass(frozen=True)
class OptimizerQuestion:
    """What an optimizer is asked for.

    Attributes:
        stage: the job's stage.
        phase: the phase of its workers.
        ps_may_change: False for a while after parameter servers changed.
    """

    stage: OptimizerStage
    phase: WorkerPhase = WorkerPhase.INITIAL
    ps_may_change: bool = True


Optimizer = Callable[[OptimizerQuestion, OptimizerJob], Advice]
"""Advice for one job, as `optimize_locally` and the client of the Brain service do."""


@dataclass(frozen=True)
class StageProgress:
    """A job's progress through the stages.

    Attributes:
        stage: the stage of the next question.
        ps_changed_at: Unix seconds of the last advice that changed parameter servers; None if there was none.
        sampled: whether there was advice for workers in RUNNING.
    """

    stage: OptimizerStage = OptimizerStage.CREATE
    ps_changed_at: float | None = None
    sampled: bool = False

    def question(self, now: float) -> OptimizerQuestion:
        """The question to ask the optimizer now."""
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
) -> tuple[Advice, StageProgress]:
    """Ask an optimizer for advice; the advice, and the progress after it.

    The stage does not advance while its statistics are missing.

    Args:
        progress: from the last call; `StageProgress()` for a new job.
        job: the present job.
        now: Unix seconds.
        optimize: the optimizer to ask.
    """
    question = progress.question(now)
    advice = optimize(question, job)
    if advice.waiting:
        return advice, progress
    after = replace(progress, stage=_NEXT[question.stage])
    if question.stage is OptimizerStage.CREATE:
        return advice, after
    if advice.changes(job, PS):
        after = replace(after, ps_changed_at=now if math.isfinite(now) else progress.ps_changed_at)
    if question.stage is OptimizerStage.RUNNING and advice.changes(job, WORKER):
        after = replace(after, sampled=True)
    return advice, after


def optimize_locally(question: OptimizerQuestion, job: OptimizerJob) -> Advice:
    match question.stage:
        case OptimizerStage.CREATE:
            return local_optimizer.advise_new_job(job)
        case OptimizerStage.WORKER_INITIAL:
            return local_optimizer.advise_workers(job)
        case OptimizerStage.PS_INITIAL:
            return local_optimizer.advise_initial_servers(job)
        case OptimizerStage.RUNNING:
            return local_optimizer.advise_running_job(job, ps_may_change=question.ps_may_change)
