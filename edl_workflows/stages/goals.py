"""Goals of stages, and `evaluate_goal`: the pure decision whether an object's current state reaches a
goal."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from edl_workflows.exceptions import (
    EdlError,
    InvalidError,
    JobDisappearedError,
    JobFailedError,
    JobFinishedError,
    PlanFailedError,
)
from edl_workflows.jobs import kinds
from edl_workflows.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.jobs.function_result import read_result
from edl_workflows.jobs.objects import Model
from edl_workflows.jobs.reported_text import inert_text, inert_value
from edl_workflows.jobs.scale_plan.model import JOB_FAILED, JOB_FINISHED, ScalePlan, ScalePlanPhase
from edl_workflows.jobs.view import JobPhase, JobView
from edl_workflows.kube.resources import Object, version_of
from edl_workflows.stages.identity import StageIdentity
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
"""The phases of a migration in order. Scaling, a phase of plans without a migration, counts as the first."""


class IfFinished(StrEnum):
    """What a change or a wait comes to if the job succeeds before it: training was faster than the
    pipeline."""

    SKIP = "skip"
    FAIL = "fail"
    SUCCEED = "succeed"


class JobGoal(Model):
    """A state of a job. All that is given must hold at once.

    Attributes:
        phases: any of these. A job that has Succeeded meets Running, too: it has run.
        step: global training step, or a later one.
        condition: type of a condition, as ``Running``, or its type and a status other than True, as
            ``Running=False``.
        nodes: number of ready nodes, all roles together; a job that has Succeeded needs none.
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
    """A plan of the job's own optimizer for its current state.

    Attributes:
        change: whether the plan must change something.
    """

    type: Literal["planned"] = "planned"
    change: bool = False


class ExistsGoal(Model):
    """The object exists, in any state."""

    type: Literal["exists"] = "exists"


class UnfinishedGoal(Model):
    """The job has not ended, so that it can be changed: the goal of a change of a job that has ended."""

    type: Literal["unfinished"] = "unfinished"


class GoneGoal(Model):
    """The object no longer exists."""

    type: Literal["gone"] = "gone"


Goal = Annotated[
    JobGoal | PlanGoal | PlannedGoal | ExistsGoal | UnfinishedGoal | GoneGoal, Field(discriminator="type")
]


class Handle(Model):
    """What a stage waits for. It holds no secrets: engines store it as plain text.

    Attributes:
        kind, namespace, name: the object.
        goal: the state to wait for.
        uid: uid of the object; "" until it has been seen.
        version: resourceVersion when the stage began; older states are ignored.
        owner, attempt: the owner annotations of an object that the stage created; "" if it created none. A
            stage cancels only what it created.
        if_finished: the result if the job succeeds before the goal is reached.
    """

    kind: str
    namespace: str
    name: str
    goal: Goal
    uid: str = ""
    version: int = 0
    owner: str = ""
    attempt: str = ""
    if_finished: IfFinished = IfFinished.FAIL

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def describe_command(self) -> str:
        """The command that shows the object."""
        return f"kubectl --namespace {self.namespace} describe {self.kind.lower()} {self.name}"

    @classmethod
    def of(
        cls,
        kind: str,
        found: Object,
        goal: Goal,
        creator: StageIdentity | None = None,
        if_finished: IfFinished = IfFinished.FAIL,
    ) -> Self:
        """The handle of an object as the API server returned it.

        Args:
            kind: kind of the object.
            found: the object.
            goal: the state to wait for.
            creator: who runs the stage, if the stage created the object or adopted it.
            if_finished: the result if the job succeeds before the goal is reached.
        """
        metadata = found["metadata"]
        return cls(
            kind=kind,
            namespace=metadata["namespace"],
            name=metadata["name"],
            goal=goal,
            uid=metadata["uid"],
            version=version_of(found),
            owner=creator.owner if creator is not None else "",
            attempt=creator.attempt if creator is not None else "",
            if_finished=if_finished,
        )

    @classmethod
    def of_ended(cls, kind: str, found: Object, if_finished: IfFinished) -> Self | None:
        """The handle of a change for which a job has ended too early; None if the job has not ended.

        The change then creates nothing; `evaluate_goal` decides what it comes to.

        Args:
            kind: kind of the job.
            found: the job.
            if_finished: the result if the job has succeeded.
        """
        job = read_object(kind, found)
        if not isinstance(job, JobView) or not job.phase.final:
            return None
        return cls.of(kind, found, UnfinishedGoal(), if_finished=if_finished)


class OutputCheckpoint(Model):
    """A checkpoint: its location and its global step."""

    uri: str
    step: int


MAX_WARNINGS = 10
MAX_WARNING = 500
"""Characters. Engines keep outputs in their databases, Argo in the Workflow object."""


class Outputs(Model):
    """The outputs of a stage. They are small: engines copy them into their database.

    Attributes:
        kind, namespace, name, uid: the object of the stage.
        job: name of the job; it differs from `name` if the object is a plan.
        phase: phase of the object, a `JobPhase` or a phase of plans; "" if the object no longer exists.
        step, records: progress of training.
        metrics: the newest values that the program reported, by name; None if it reported none.
        warnings: problems that do not stop the job, at most `MAX_WARNINGS` and each at most
            `MAX_WARNING` characters, without control characters or Argo's tags; None if there are none.
        result: what the training function returned; None if it returned nothing, and of a script.
        checkpoint: the newest checkpoint of the job, or the plan's.
        resumed_step: first training step after a migration.
        stall_seconds: how long training paused for a migration.
        replicas: role → number of ready nodes.
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
    metrics: dict[str, float] | None = None
    warnings: list[str] | None = None
    result: Any = None
    checkpoint: OutputCheckpoint | None = None
    resumed_step: int | None = None
    stall_seconds: float | None = None
    replicas: dict[str, int] = Field(default_factory=dict)
    plan: PlannedChange | None = None


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
    """The job succeeded before the goal was reached, and the caller wants that to be no error.

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
ObservedObject = JobView | ScalePlan | None


def read_object(kind: str, manifest: Mapping[str, Any] | None) -> ObservedObject:
    """The view of a job, or the ScalePlan, of a manifest; None without a manifest.

    An object whose spec does not validate is read, too: the API server has admitted it, and a job reports it
    by its reason InvalidSpec.

    Raises:
        InvalidError: this package does not know the kind.
    """
    if manifest is None:
        return None
    row = kinds.kind_of(kind)
    if row.view is not None:
        return row.view_stored(manifest)
    return ScalePlan.read_stored(manifest)[0]


def uid_of(seen: JobView | ScalePlan) -> str:
    """The uid of the object."""
    return seen.uid if isinstance(seen, JobView) else seen.metadata.uid


def has_ended(seen: JobView | ScalePlan) -> bool:
    """Whether its phase is final."""
    if isinstance(seen, JobView):
        return seen.phase.final
    return seen.status.phase is not None and seen.status.phase.final


def has_failed(seen: JobView | ScalePlan) -> bool:
    """Whether its phase is Failed."""
    if isinstance(seen, JobView):
        return seen.phase is JobPhase.FAILED
    return seen.status.phase is ScalePlanPhase.FAILED


def evaluate_goal(handle: Handle, seen: ObservedObject) -> StageResult:
    """Decide whether the current state of the object reaches the goal of the handle."""
    replaced = seen is not None and bool(handle.uid) and uid_of(seen) != handle.uid
    if isinstance(handle.goal, GoneGoal):
        gone = seen is None or replaced
        return (
            Done(_basic_outputs(handle)) if gone else InProgress("is being deleted", _basic_outputs(handle))
        )
    if replaced:
        return Failed(JobDisappearedError(f"{handle} was deleted and replaced by another of the same name"))
    if seen is None:
        if handle.uid:
            message = f"{handle} was deleted by somebody else before it ended"
            return Failed(JobDisappearedError(f"{message}; run the stage again to create it anew"))
        return InProgress("does not exist yet", _basic_outputs(handle))
    if isinstance(handle.goal, ExistsGoal):
        return Done(outputs_of(handle, seen))
    if isinstance(seen, JobView) and isinstance(handle.goal, UnfinishedGoal):
        return _evaluate_end(handle, seen, "it can no longer be changed")
    if isinstance(seen, JobView) and isinstance(handle.goal, JobGoal):
        return _evaluate_job_goal(handle, handle.goal, seen)
    if isinstance(seen, JobView) and isinstance(handle.goal, PlannedGoal):
        return _evaluate_planned_goal(handle, handle.goal, seen)
    assert isinstance(seen, ScalePlan), "goals of plans are for plans"
    assert isinstance(handle.goal, PlanGoal), "and no others"
    return _evaluate_plan_goal(handle, handle.goal, seen)


def _evaluate_job_goal(handle: Handle, goal: JobGoal, job: JobView) -> StageResult:
    if job.phase is JobPhase.FAILED and JobPhase.FAILED not in goal.phases:
        return _evaluate_end(handle, job)
    # The spec of a finished job can still be edited, but no controller observes the edit.
    reached = (job.current or job.phase.final) and _phase_reached(goal, job) and _progress_reached(goal, job)
    if reached:
        return Done(outputs_of(handle, job))
    if job.phase.final:
        return _evaluate_end(handle, job, f"{_describe_goal(goal)} can no longer be reached")
    why = f": {_describe_reason(job.reason, job.message)}" if job.reason else ""
    return InProgress(f"is {job.phase}{why}", outputs_of(handle, job), job.warnings)


def _evaluate_end(handle: Handle, job: JobView, missed: str = "") -> StageResult:
    """The result for a job that ended without the goal.

    Args:
        handle: handle of the job.
        job: the job, in a final phase.
        missed: what became impossible.
    """
    if job.phase is JobPhase.SUCCEEDED:
        told = f"{handle} has already succeeded, at step {job.progress.step}; {missed}"
        return _finished(handle, told, job)
    why = _describe_reason(job.reason, job.message)
    after = f"; {missed}" if missed else ""
    return Failed(JobFailedError(f"{handle} failed: {why}{after}"))


def _finished(handle: Handle, reason: str, seen: JobView | ScalePlan) -> StageEnd:
    """The one rule for a job that succeeded before a change or a wait: the caller's choice."""
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


def _evaluate_planned_goal(handle: Handle, goal: PlannedGoal, job: JobView) -> StageResult:
    """While the job changes, its last plan is outdated: only a plan made after the change counts."""
    found = outputs_of(handle, job)
    if job.phase.final:
        return _evaluate_end(handle, job, "nothing is planned for it any more")
    if job.phase in (JobPhase.SCALING, JobPhase.RESTARTING, JobPhase.SUSPENDED):
        return InProgress(f"is {job.phase}; a new plan follows", found)
    if found.plan is None:
        return InProgress(f"is {job.phase}; its master has not planned it yet", found)
    if goal.change and found.plan.empty:
        notes = "; ".join(found.plan.notes)
        return InProgress(f"has an empty plan{f': {notes}' if notes else ''}", found)
    return Done(found)


def _evaluate_plan_goal(handle: Handle, goal: PlanGoal, plan: ScalePlan) -> StageResult:
    status = plan.status
    phase = status.phase or ScalePlanPhase.PENDING
    if phase is ScalePlanPhase.FAILED:
        why = _describe_reason(status.reason, status.message)
        if status.reason == JOB_FINISHED:
            return _finished(handle, f"{handle} for job {plan.job} came too late: {why}", plan)
        if status.reason == JOB_FAILED:
            return Failed(JobFailedError(f"{handle} for job {plan.job} failed: {why}"))
        return Failed(
            PlanFailedError(f"{handle} for job {plan.job} failed: {why}; the job goes on as before")
        )
    order = {name: index for index, name in enumerate(_MIGRATION)}
    if order.get(phase, 0) >= order.get(goal.phase, 0):
        return Done(outputs_of(handle, plan))
    return InProgress(f"is {phase}", outputs_of(handle, plan))


def outputs_of(handle: Handle, seen: JobView | ScalePlan) -> Outputs:
    """The outputs of a stage whose object is in this state."""
    identity = _basic_outputs(handle)
    if isinstance(seen, JobView):
        checkpoint = seen.checkpoint
        return identity.model_copy(
            update={
                "uid": seen.uid,
                "phase": str(seen.phase),
                "step": seen.progress.step,
                "records": seen.progress.records,
                "metrics": seen.progress.metrics or None,
                "warnings": [inert_text(text)[:MAX_WARNING] for text in seen.warnings[:MAX_WARNINGS]] or None,
                "result": _result_of(seen),
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


def _result_of(job: JobView) -> Any:
    """The function's result; None if there is none, or the status was edited to what is not one."""
    try:
        return inert_value(read_result(job.result)) if job.result else None
    except InvalidError:
        return None


def _planned_change(handle: Handle, job: JobView) -> PlannedChange | None:
    """Only of a stage that waits for a plan: other outputs stay small. For a job that has ended, nothing is
    planned."""
    if not isinstance(handle.goal, PlannedGoal):
        return None
    if job.phase.final:
        return PlannedChange.of(AutoscalingStatus())
    return PlannedChange.of(job.planned) if job.planned is not None else None


def _basic_outputs(handle: Handle) -> Outputs:
    return Outputs(
        kind=handle.kind, namespace=handle.namespace, name=handle.name, uid=handle.uid, job=handle.name
    )


def _describe_reason(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message) if part) or "no reason given"
