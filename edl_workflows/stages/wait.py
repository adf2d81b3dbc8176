"""Wait for a job (phase, step, condition) or for a ScalePlan that another stage made. Makes nothing, cancels nothing."""

from pydantic import Field, model_validator

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs import kinds
from edl_workflows.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.jobs.view import JobPhase
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages.description import JobRequest, StageRequest, StageSpec
from edl_workflows.stages.goals import Handle, JobGoal, PlanGoal
from edl_workflows.stages.identity import StageIdentity


class WaitRequest(JobRequest):
    """What to wait for; all that is given must hold at once. A job that is not there yet is waited for.

    Attributes:
        phases: any of these; with neither step nor condition the default is Succeeded.
        step: a global step that training has reached, before a suspension too: the chief saves it.
        condition: a condition's type (``Running``), or type and status (``Running=False``).
    """

    phases: tuple[JobPhase, ...] = ()
    step: int | None = Field(default=None, ge=0)
    condition: str = ""

    @model_validator(mode="before")
    @classmethod
    def _default(cls, values: object) -> object:
        if isinstance(values, dict) and not any(
            values.get(key) not in (None, "", (), []) for key in ("phases", "step", "condition")
        ):
            return {**values, "phases": (JobPhase.SUCCEEDED,)}
        return values


class WaitPlanRequest(StageRequest):
    """A plan, and the phase that it shall have reached."""

    name: str = Field(min_length=1)
    namespace: str = ""
    phase: ScalePlanPhase = ScalePlanPhase.SUCCEEDED


def begin_wait(cluster: Cluster, request: WaitRequest, _identity: StageIdentity) -> Handle:
    """Nothing is done; the handle says what to look at.

    Raises:
        InvalidError: objects of this kind are no jobs.
    """
    if kinds.kind_of(request.kind).view is None:
        raise InvalidError(f"a {request.kind} is no job; the stage {WAIT_PLAN.name} waits for plans")
    return Handle(
        kind=request.kind,
        namespace=request.namespace or cluster.namespace,
        name=request.name,
        goal=JobGoal(phases=request.phases, step=request.step, condition=request.condition),
    )


def begin_wait_plan(cluster: Cluster, request: WaitPlanRequest, _identity: StageIdentity) -> Handle:
    """As `begin_wait`, for a plan."""
    return Handle(
        kind=SCALE_PLAN,
        namespace=request.namespace or cluster.namespace,
        name=request.name,
        goal=PlanGoal(phase=request.phase),
    )


WAIT = StageSpec("wait", WaitRequest, begin_wait)
WAIT_PLAN = StageSpec("wait-plan", WaitPlanRequest, begin_wait_plan)
