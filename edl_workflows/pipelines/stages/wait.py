"""Wait for a job (phase, step, condition), or for a ScalePlan that another stage created. Nothing is changed
or canceled; only a wait for a step is registered on its job while it lasts."""

from typing import Annotated

from pydantic import Field, model_validator

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.elastic_job.awaited_steps import annotation_of
from edl_workflows.core.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.pipelines.stages.description import (
    Argument,
    IfFinishedField,
    JobRequest,
    StageRequest,
    StageSpec,
)
from edl_workflows.pipelines.waiting.goals import ChangeGoal, Handle, IfFinished, JobGoal
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster

PHASES = Argument(
    "Phase to wait for; with several, any of them. Succeeded by default.",
    cli="option", cli_name="--for", templated=True,
    argo=True, argo_help="Phases to wait for, any of them, separated by commas.", default="Succeeded",
)  # fmt: skip
STEP = Argument(
    "Global training step to wait for.", cli="option", templated=True,
    argo=True, argo_help="Global training step to wait for in addition; empty: none.",
)  # fmt: skip
CONDITION = Argument("Condition to wait for, as Running or Running=False.", cli="option", templated=True)


class WaitRequest(JobRequest):
    """What to wait for. All that is given must hold at once; a job that does not exist yet is waited for.

    Attributes:
        phases: any of these; by default Succeeded if neither a step nor a condition is given.
        step: global training step. It also counts as reached if the job was suspended after it, since the
            chief has saved the model.
        condition: type of a condition (``Running``), or its type and status (``Running=False``).
        if_finished: the result if the job succeeds without what is waited for.
    """

    phases: Annotated[tuple[JobPhase, ...], PHASES] = ()
    step: Annotated[int | None, STEP] = Field(default=None, ge=0)
    condition: Annotated[str, CONDITION] = ""
    if_finished: IfFinishedField = IfFinished.SKIP

    @model_validator(mode="before")
    @classmethod
    def _default(cls, values: object) -> object:
        if isinstance(values, dict) and not any(
            values.get(key) not in (None, "", (), []) for key in ("phases", "step", "condition")
        ):
            return {**values, "phases": (JobPhase.SUCCEEDED,)}
        return values


class WaitChangeRequest(StageRequest):
    """A ScalePlan, and the phase to wait for.

    Attributes:
        name: name of the plan.
        namespace: namespace of the plan; "" for the connection's.
        phase: this phase or a later one.
        if_finished: the result if the plan came too late, because the job had succeeded.
    """

    name: Annotated[str, Argument("The plan's name.", argo=True, templated=True)] = Field(min_length=1)
    namespace: str = ""
    phase: Annotated[ScalePlanPhase, Argument("Phase to wait for, or a later one.", templated=True)] = (
        ScalePlanPhase.SUCCEEDED
    )
    if_finished: IfFinishedField = IfFinished.SKIP


def begin_wait(cluster: Cluster, request: WaitRequest, identity: StageIdentity) -> Handle:
    """Return what to wait for; nothing is changed. The wait for a step is registered on the job later, when
    the job exists (`waiting.step_waiters`).

    Raises:
        InvalidError: objects of this kind are not jobs.
    """
    if kinds.kind_of(request.kind).view is None:
        raise InvalidError(f"a {request.kind} is not a job; the stage {WAIT_PLAN.name} waits for plans")
    return Handle(
        kind=request.kind,
        namespace=request.namespace or cluster.namespace,
        name=request.name,
        goal=JobGoal(phases=request.phases, step=request.step, condition=request.condition),
        if_finished=request.if_finished,
        waiter=annotation_of(identity.owner) if request.step else "",
    )


def begin_wait_plan(cluster: Cluster, request: WaitChangeRequest, _identity: StageIdentity) -> Handle:
    """Return what to wait for; nothing is changed."""
    return Handle(
        kind=SCALE_PLAN,
        namespace=request.namespace or cluster.namespace,
        name=request.name,
        goal=ChangeGoal(phase=request.phase),
        if_finished=request.if_finished,
    )


WAIT = StageSpec(
    "wait",
    "Wait until a job reaches a phase, a training step or a condition. "
    "A job that does not exist yet is waited for.",
    WaitRequest,
    begin_wait,
    waits="always",
)
WAIT_PLAN = StageSpec(
    "wait-plan", "Wait until a ScalePlan reaches a phase.", WaitChangeRequest, begin_wait_plan, waits="always"
)
