"""The outputs of a stage, and their derivation from the state of its object."""

from typing import Any

from pydantic import Field

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.usage.model import hours_by_part
from edl_workflows.core.jobs.view import JobView
from edl_workflows.core.kubernetes.objects import Model
from edl_workflows.core.protocol.function_result import read_result
from edl_workflows.core.protocol.reported_text import inert_text, inert_value
from edl_workflows.pipelines.waiting.advised_change import AdvisedChange
from edl_workflows.pipelines.waiting.goals import AdviceGoal, Handle

MAX_WARNINGS = 10
MAX_WARNING = 500
"""Characters. Engines keep outputs in their databases, Argo in the Workflow object."""


class OutputCheckpoint(Model):
    """A checkpoint: its location and its global step."""

    uri: str
    step: int


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
        result: what the training function returned; None if it returned nothing, or the program is a script.
        checkpoint: the newest checkpoint of the job, or the plan's.
        resumed_step: first training step after a migration.
        stall_seconds: how long training paused for a migration.
        replicas: role → number of ready nodes.
        usage: hours times the amount of each resource that the job's pods have held (``cpu`` in cores,
            ``memory`` in GiB, ``gpu``), by what they were held for (``useful``, ``lost``, ``overhead``,
            ``unknown``); None if they have held nothing.
        plan: what the job's optimizer would change; None unless the stage waits for advice.
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
    usage: dict[str, dict[str, float]] | None = None
    plan: AdvisedChange | None = None


def basic_outputs(handle: Handle) -> Outputs:
    """The outputs of a stage whose object does not exist: its identity only."""
    return Outputs(
        kind=handle.kind, namespace=handle.namespace, name=handle.name, uid=handle.uid, job=handle.name
    )


def outputs_of(handle: Handle, seen: JobView | ScalePlan) -> Outputs:
    """The outputs of a stage whose object is in this state."""
    identity = basic_outputs(handle)
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
                "usage": hours_by_part(seen.usage) if seen.usage else None,
                "plan": _advised_change(handle, seen),
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
    """The function's result; None if there is none, or if the status was edited and its value is invalid."""
    try:
        return inert_value(read_result(job.result)) if job.result else None
    except InvalidError:
        return None


def _advised_change(handle: Handle, job: JobView) -> AdvisedChange | None:
    """The advice of the job's optimizer, only for stages that wait for it, so that other outputs stay
    small. For a job that has ended, it is empty."""
    if not isinstance(handle.goal, AdviceGoal):
        return None
    if job.phase.final:
        return AdvisedChange.of(AutoscalingStatus())
    return AdvisedChange.of(job.planned) if job.planned is not None else None
