"""Results of stages, and `evaluate_goal`: the pure function that derives a stage's result from the state of
its object."""

from dataclasses import dataclass

from edl_workflows.core.exceptions import (
    EdlError,
    JobDisappearedError,
    JobFailedError,
    JobFinishedError,
    PlanFailedError,
)
from edl_workflows.core.jobs.scale_plan.model import JOB_FAILED, JOB_FINISHED, ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.pipelines.waiting.goals import (
    AdviceGoal,
    ChangeGoal,
    ExistsGoal,
    GoneGoal,
    Handle,
    IfFinished,
    JobGoal,
    UnfinishedGoal,
)
from edl_workflows.pipelines.waiting.observed import ObservedObject, uid_of
from edl_workflows.pipelines.waiting.outputs import Outputs, basic_outputs, outputs_of

_MIGRATION = (
    ScalePlanPhase.PENDING,
    ScalePlanPhase.CHECKPOINTING,
    ScalePlanPhase.CHECKPOINTED,
    ScalePlanPhase.MIGRATING,
    ScalePlanPhase.RESTARTING,
    ScalePlanPhase.VERIFYING,
    ScalePlanPhase.SUCCEEDED,
)
"""The phases of a migration in order. Scaling, a phase of plans without a migration, counts as the first."""


@dataclass(frozen=True)
class InProgress:
    """The goal is not reached yet.

    Attributes:
        message: the current state; the text changes only when the state does.
        outputs: the outputs for callers that do not wait.
        warnings: problems that do not stop the job.
    """

    message: str
    outputs: Outputs
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """The goal is reached."""

    outputs: Outputs


@dataclass(frozen=True)
class Skipped:
    """The job succeeded before the goal was reached, which the caller does not regard as an error.

    Attributes:
        reason: what happened, for people.
        outputs: the outputs of the job or plan as it is.
    """

    reason: str
    outputs: Outputs


@dataclass(frozen=True)
class Failed:
    """The goal can no longer be reached.

    Attributes:
        error: why.
    """

    error: EdlError


StageEnd = Done | Skipped | Failed
StageResult = InProgress | StageEnd


def evaluate_goal(handle: Handle, seen: ObservedObject) -> StageResult:
    """Decide whether the current state of the object reaches the goal of the handle."""
    replaced = seen is not None and bool(handle.uid) and uid_of(seen) != handle.uid
    if isinstance(handle.goal, GoneGoal):
        gone = seen is None or replaced
        return Done(basic_outputs(handle)) if gone else InProgress("is being deleted", basic_outputs(handle))
    if replaced:
        return Failed(JobDisappearedError(f"{handle} was deleted and replaced by another of the same name"))
    if seen is None:
        if handle.uid:
            message = f"{handle} was deleted by somebody else before it ended; submit it again"
            return Failed(JobDisappearedError(message))
        return InProgress("does not exist yet", basic_outputs(handle))
    if isinstance(handle.goal, ExistsGoal):
        return Done(outputs_of(handle, seen))
    if isinstance(seen, JobView) and isinstance(handle.goal, UnfinishedGoal):
        return _evaluate_end(handle, seen, "it can no longer be changed")
    if isinstance(seen, JobView) and isinstance(handle.goal, JobGoal):
        return _evaluate_job_goal(handle, handle.goal, seen)
    if isinstance(seen, JobView) and isinstance(handle.goal, AdviceGoal):
        return _evaluate_advice_goal(handle, handle.goal, seen)
    assert isinstance(seen, ScalePlan), "goals of plans are for plans"
    assert isinstance(handle.goal, ChangeGoal), "and no others"
    return _evaluate_change_goal(handle, handle.goal, seen)


def _evaluate_job_goal(handle: Handle, goal: JobGoal, job: JobView) -> StageResult:
    if job.phase is JobPhase.FAILED and JobPhase.FAILED not in goal.phases:
        return _evaluate_end(handle, job)
    # The spec of a finished job can still be edited, but no controller observes the edit.
    reached = (job.current or job.phase.final) and _phase_reached(goal, job) and _progress_reached(goal, job)
    if reached:
        return Done(outputs_of(handle, job))
    if job.phase.final:
        return _evaluate_end(handle, job, f"{_describe_goal(goal)} can no longer be reached")
    reason = f": {describe_reason(job.reason, job.message)}" if job.reason else ""
    return InProgress(f"is {job.phase}{reason}", outputs_of(handle, job), job.warnings)


def _evaluate_end(handle: Handle, job: JobView, missed: str = "") -> StageResult:
    """The result for a job that ended before it reached the goal.

    Args:
        handle: handle of the job.
        job: the job, in a final phase.
        missed: what became impossible.
    """
    if job.phase is JobPhase.SUCCEEDED:
        message = f"{handle} has already succeeded, at step {job.progress.step}; {missed}"
        return _finished(handle, message, job)
    reason = describe_reason(job.reason, job.message)
    after = f"; {missed}" if missed else ""
    return Failed(JobFailedError(f"{handle} failed: {reason}{after}"))


def _finished(handle: Handle, reason: str, seen: JobView | ScalePlan) -> StageEnd:
    """The result for a job that succeeded before a change or a wait: always the caller's choice,
    `Handle.if_finished`."""
    outputs = outputs_of(handle, seen)
    if handle.if_finished is IfFinished.SKIP:
        return Skipped(reason, outputs)
    return Done(outputs) if handle.if_finished is IfFinished.SUCCEED else Failed(JobFinishedError(reason))


def _phase_reached(goal: JobGoal, job: JobView) -> bool:
    has_run = JobPhase.RUNNING in goal.phases and job.phase is JobPhase.SUCCEEDED
    return not goal.phases or job.phase in goal.phases or has_run


def _progress_reached(goal: JobGoal, job: JobView) -> bool:
    condition, _, status = goal.condition.partition("=")
    holds = not condition or job.conditions.get(condition) == (status or "True")
    ready = sum(role.ready for role in job.replicas.values())
    enough = ready >= goal.nodes or job.phase is JobPhase.SUCCEEDED
    return holds and enough and (goal.step is None or job.progress.step >= goal.step)


def _describe_goal(goal: JobGoal) -> str:
    parts = [
        f"phase {' or '.join(goal.phases)}" if goal.phases else "",
        f"step {goal.step}" if goal.step is not None else "",
        f"condition {goal.condition}" if goal.condition else "",
    ]
    return " with ".join(part for part in parts if part)


def _evaluate_advice_goal(handle: Handle, goal: AdviceGoal, job: JobView) -> StageResult:
    """While the job changes, its last advice is outdated: only advice given after the change counts."""
    outputs = outputs_of(handle, job)
    if job.phase.final:
        return _evaluate_end(handle, job, "nothing is planned for it any more")
    if job.phase in (JobPhase.SCALING, JobPhase.RESTARTING, JobPhase.SUSPENDED):
        return InProgress(f"is {job.phase}; a new plan follows", outputs)
    if outputs.plan is None:
        return InProgress(f"is {job.phase}; its master has not planned it yet", outputs)
    if goal.change and outputs.plan.empty:
        notes = "; ".join(outputs.plan.notes)
        return InProgress(f"has an empty plan{f': {notes}' if notes else ''}", outputs)
    return Done(outputs)


def _evaluate_change_goal(handle: Handle, goal: ChangeGoal, plan: ScalePlan) -> StageResult:
    status = plan.status
    phase = status.phase or ScalePlanPhase.PENDING
    if phase is ScalePlanPhase.FAILED:
        reason = describe_reason(status.reason, status.message)
        if status.reason == JOB_FINISHED:
            return _finished(handle, f"{handle} for job {plan.job} came too late: {reason}", plan)
        if status.reason == JOB_FAILED:
            return Failed(JobFailedError(f"{handle} for job {plan.job} failed: {reason}"))
        return Failed(
            PlanFailedError(f"{handle} for job {plan.job} failed: {reason}; the job goes on as before")
        )
    order = {name: index for index, name in enumerate(_MIGRATION)}
    if order.get(phase, 0) >= order.get(goal.phase, 0):
        return Done(outputs_of(handle, plan))
    reason = f": {status.message}" if status.message else ""
    return InProgress(f"is {phase}{reason}", outputs_of(handle, plan))


def describe_reason(reason: str, message: str) -> str:
    """Reason and message of a status in one line."""
    return ": ".join(part for part in (reason, message) if part) or "no reason given"
