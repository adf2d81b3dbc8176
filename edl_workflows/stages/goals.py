"""When a stage has reached what it wants: goals, and `evaluate_goal`, the pure decision from what an object says now."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from edl_workflows.exceptions import EdlError, JobDisappearedError, JobFailedError, PlanFailedError
from edl_workflows.jobs import kinds
from edl_workflows.jobs.objects import Model
from edl_workflows.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.jobs.view import JobPhase, JobView
from edl_workflows.stages.planned_change import PlannedChange

_MIGRATION = (
    ScalePlanPhase.PENDING,
    ScalePlanPhase.CHECKPOINTING,
    ScalePlanPhase.CHECKPOINTED,
    ScalePlanPhase.MIGRATING,
    ScalePlanPhase.RESTARTING,
    ScalePlanPhase.VERIFYING,
    ScalePlanPhase.SUCCEEDED,
)
"""The phases of a migration in order. Scaling, which is of plans without one, comes before none but the last."""


class JobGoal(Model):
    """A job in a state; what is given must hold at once.

    Attributes:
        phases: any of these. Running is also met by a job that has Succeeded meanwhile: it has run.
        step: training has reached this global step.
        condition: a condition's type, as ``Running``, or with a status other than True, as ``Running=False``.
        nodes: so many nodes of all roles together are ready; a job that has Succeeded needs none any more.
    """

    type: Literal["job"] = "job"
    phases: tuple[JobPhase, ...] = ()
    step: int | None = Field(default=None, ge=0)
    condition: str = ""
    nodes: int = Field(default=0, ge=0)


class PlanGoal(Model):
    """A ScalePlan that has reached a phase, or a later one."""

    type: Literal["plan"] = "plan"
    phase: ScalePlanPhase = ScalePlanPhase.SUCCEEDED


class PlannedGoal(Model):
    """A job whose own optimizer has a plan for it as it is.

    Attributes:
        change: one that changes something.
    """

    type: Literal["planned"] = "planned"
    change: bool = False


class ExistsGoal(Model):
    """The object is there, whatever its state."""

    type: Literal["exists"] = "exists"


class GoneGoal(Model):
    """The object is no longer there."""

    type: Literal["gone"] = "gone"


Goal = Annotated[JobGoal | PlanGoal | PlannedGoal | ExistsGoal | GoneGoal, Field(discriminator="type")]


class Handle(Model):
    """What a stage waits for. It holds no secret: engines store it in the clear.

    Attributes:
        kind, namespace, name: the object.
        uid: the very object; "" until it was seen.
        version: resourceVersion at the beginning; an older state is from before and says nothing.
        owner, attempt: the marks on an object that the stage made; "" if it made none, and then it cancels none.
    """

    kind: str
    namespace: str
    name: str
    goal: Goal
    uid: str = ""
    version: int = 0
    owner: str = ""
    attempt: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class OutputCheckpoint(Model):
    """A checkpoint among a stage's outputs."""

    uri: str
    step: int


class Outputs(Model):
    """What a stage hands on. Small: engines copy it into their database.

    Attributes:
        kind, namespace, name, uid: the object that the stage was about.
        job: the job's name; the same as `name` unless that is a plan's.
        phase: the object's, in the words of `JobPhase` or of a plan's phases; "" of one that is gone.
        step, records: how far training is.
        checkpoint: the newest, or the plan's.
        resumed_step, stall_seconds: of a migration: the first step afterwards, and how long training stood still.
        replicas: ready nodes by role.
        plan: what the job's optimizer would change.
    """

    kind: str
    namespace: str
    name: str
    uid: str = ""
    job: str
    phase: str = ""
    step: int | None = None
    records: int | None = None
    checkpoint: OutputCheckpoint | None = None
    resumed_step: int | None = None
    stall_seconds: float | None = None
    replicas: dict[str, int] = Field(default_factory=dict)
    plan: PlannedChange | None = None


@dataclass(frozen=True)
class InProgress:
    """Not yet.

    Attributes:
        message: what is, in words that change only when something did.
        outputs: for who does not want to wait.
        warnings: what people should know although the job goes on.
    """

    message: str
    outputs: Outputs
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """The goal is reached."""

    outputs: Outputs


@dataclass(frozen=True)
class Failed:
    """The goal can't be reached any more, for this reason."""

    error: EdlError


StageResult = InProgress | Done | Failed
ObservedObject = JobView | ScalePlan | None


def read_object(kind: str, manifest: Mapping[str, Any] | None) -> ObservedObject:
    """An object as a stage sees it; None if there is none. One whose spec does not validate is seen like any other: the
    API server has admitted it, and a job says so by its reason, InvalidSpec.

    Raises:
        InvalidError: this package has no such kind.
    """
    if manifest is None:
        return None
    row = kinds.kind_of(kind)
    if row.view is not None:
        return row.view_stored(manifest)
    return ScalePlan.read_stored(manifest)[0]


def uid_of(seen: JobView | ScalePlan) -> str:
    """The uid of what was seen."""
    return seen.uid if isinstance(seen, JobView) else seen.metadata.uid


def has_ended(seen: JobView | ScalePlan) -> bool:
    """Whether it never changes again."""
    if isinstance(seen, JobView):
        return seen.phase.final
    return seen.status.phase is not None and seen.status.phase.final


def has_failed(seen: JobView | ScalePlan) -> bool:
    """Whether it ended in phase Failed."""
    if isinstance(seen, JobView):
        return seen.phase is JobPhase.FAILED
    return seen.status.phase is ScalePlanPhase.FAILED


def evaluate_goal(handle: Handle, seen: ObservedObject) -> StageResult:
    """Whether the handle's goal is reached by what is seen now."""
    replaced = seen is not None and bool(handle.uid) and uid_of(seen) != handle.uid
    if isinstance(handle.goal, GoneGoal):
        return (
            Done(_basic_outputs(handle))
            if seen is None or replaced
            else InProgress("is being deleted", _basic_outputs(handle))
        )
    if replaced:
        return Failed(JobDisappearedError(f"{handle} was deleted and replaced by another of the same name"))
    if seen is None:
        if handle.uid:
            message = f"{handle} was deleted by somebody else before it had ended; run the stage again to make it anew"
            return Failed(JobDisappearedError(message))
        return InProgress("is not there yet", _basic_outputs(handle))
    if isinstance(handle.goal, ExistsGoal):
        return Done(outputs_of(handle, seen))
    if isinstance(seen, JobView) and isinstance(handle.goal, JobGoal):
        return _evaluate_job_goal(handle, handle.goal, seen)
    if isinstance(seen, JobView) and isinstance(handle.goal, PlannedGoal):
        return _evaluate_planned_goal(handle, handle.goal, seen)
    assert isinstance(seen, ScalePlan), "goals of plans are for plans"
    assert isinstance(handle.goal, PlanGoal), "and no others"
    return _evaluate_plan_goal(handle, handle.goal, seen)


def _evaluate_job_goal(handle: Handle, goal: JobGoal, job: JobView) -> StageResult:
    if job.phase is JobPhase.FAILED and JobPhase.FAILED not in goal.phases:
        return Failed(
            JobFailedError(
                f"{handle} failed: {_describe_reason(job.reason, job.message)}; its pods' logs tell more"
            )
        )
    # A finished job's spec can still be edited, but nobody observes that any more.
    reached = (job.current or job.phase.final) and _phase_reached(goal, job) and _progress_reached(goal, job)
    if reached:
        return Done(outputs_of(handle, job))
    if job.phase.final:
        return Failed(
            JobFailedError(
                f"{handle} ended in phase {job.phase} at step {job.progress.step}; {_describe_goal(goal)} can't be reached any more"
            )
        )
    why = f": {_describe_reason(job.reason, job.message)}" if job.reason else ""
    return InProgress(f"is {job.phase}{why}", outputs_of(handle, job), job.warnings)


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


def _evaluate_planned_goal(handle: Handle, goal: PlannedGoal, job: JobView) -> StageResult:
    """A plan from before a change that goes on is for a job that is no more: what is planned afterwards counts."""
    found = outputs_of(handle, job)
    if job.phase.final:
        return Failed(
            JobFailedError(f"{handle} ended in phase {job.phase}; nothing is planned for it any more")
        )
    if job.phase in (JobPhase.SCALING, JobPhase.RESTARTING, JobPhase.SUSPENDED):
        return InProgress(f"is {job.phase}, and will be planned anew", found)
    if found.plan is None:
        return InProgress(f"is {job.phase}; its master has not planned it yet", found)
    if goal.change and found.plan.empty:
        notes = "; ".join(found.plan.notes)
        return InProgress(f"is to stay as it is{f': {notes}' if notes else ''}", found)
    return Done(found)


def _evaluate_plan_goal(handle: Handle, goal: PlanGoal, plan: ScalePlan) -> StageResult:
    status = plan.status
    phase = status.phase or ScalePlanPhase.PENDING
    if phase is ScalePlanPhase.FAILED:
        why = _describe_reason(status.reason, status.message)
        return Failed(
            PlanFailedError(f"{handle} for job {plan.job} failed: {why}; the job goes on as before")
        )
    order = {name: index for index, name in enumerate(_MIGRATION)}
    if order.get(phase, 0) >= order.get(goal.phase, 0):
        return Done(outputs_of(handle, plan))
    return InProgress(f"is {phase}", outputs_of(handle, plan))


def outputs_of(handle: Handle, seen: JobView | ScalePlan) -> Outputs:
    """What to hand on about an object."""
    identity = _basic_outputs(handle)
    if isinstance(seen, JobView):
        checkpoint = seen.checkpoint
        return identity.model_copy(
            update={
                "uid": seen.uid,
                "phase": str(seen.phase),
                "step": seen.progress.step,
                "records": seen.progress.records,
                "checkpoint": OutputCheckpoint(uri=checkpoint.uri, step=checkpoint.step)
                if checkpoint
                else None,
                "replicas": {role: counts.ready for role, counts in seen.replicas.items()},
                "plan": _planned_change(handle, seen),
            }
        )
    status = seen.status
    return identity.model_copy(
        update={
            "uid": seen.metadata.uid,
            "job": seen.job,
            "phase": str(status.phase or ScalePlanPhase.PENDING),
            "checkpoint": OutputCheckpoint(uri=status.checkpoint.uri, step=status.checkpoint.step)
            if status.checkpoint
            else None,
            "resumed_step": status.resumed_step,
            "stall_seconds": status.stall_seconds,
        }
    )


def _planned_change(handle: Handle, job: JobView) -> PlannedChange | None:
    """For who asked for it: other stages' outputs need not carry it."""
    asked = isinstance(handle.goal, PlannedGoal)
    return PlannedChange.of(job.planned) if asked and job.planned is not None else None


def _basic_outputs(handle: Handle) -> Outputs:
    return Outputs(
        kind=handle.kind, namespace=handle.namespace, name=handle.name, uid=handle.uid, job=handle.name
    )


def _describe_reason(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message) if part) or "no reason given"
