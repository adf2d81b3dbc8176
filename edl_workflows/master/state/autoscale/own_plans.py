"""What a master remembers of its own plans: how far the job is, what was planned last, which plan is being carried out.

Pure values and their transitions. What is asked of the optimizer, and what its answer does to the job: `autoscale_steps`.

The rhythm is DLRover's (``PSTrainingAutoScaler``): a sample every 15 s, a look every 30 s, a plan at most every 300 s, and
only once the job has had the nodes that it wants for 60 s.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.jobs.scale_plan.model import ScalePlanSpec
from edl_workflows.scaling.dlrover.ps_stages import StageProgress
from edl_workflows.scaling.dlrover.resources import ResourcePlan

LOCAL: Literal["local"] = "local"
BRAIN: Literal["brain"] = "brain"

STARTING_SAMPLES = 5
"""Samples with progress that a job needs before its optimizer is asked for the first time (DLRover's)."""
MAX_BACK_OFF = 3_600.0
"""Seconds after a plan that failed again and again."""


@dataclass(frozen=True)
class AutoscalingIntervals:
    """The intervals, all in proportion to the first.

    Attributes:
        period: seconds between two plans that are carried out.
    """

    period: float = 300.0

    @property
    def sample(self) -> float:
        """Seconds between two samples."""
        return self.period / 20

    @property
    def look(self) -> float:
        """Seconds between two questions to the optimizer."""
        return self.period / 10

    @property
    def steady(self) -> float:
        """Seconds for which the job must have had the same nodes."""
        return self.period / 5

    def back_off(self, failures: int) -> float:
        """Seconds from a plan to the next, after so many failed ones."""
        return min(MAX_BACK_OFF, self.period * 2.0 ** min(failures, 10)) if failures else self.period


@dataclass(frozen=True)
class OptimizerAnswer:
    """What an optimizer said.

    Attributes:
        progress: how far the job is when the plan is carried out.
        optimizer: who said it.
    """

    plan: ResourcePlan
    progress: StageProgress
    optimizer: Literal["local", "brain"] = LOCAL


@dataclass(frozen=True)
class OpenOwnPlan:
    """A plan that was decided and is not known to have ended.

    Attributes:
        number: of the job's plans.
        spec: of its ScalePlan.
        after: how far the job is when it succeeds.
        seen: it was there.
    """

    number: int
    spec: ScalePlanSpec
    after: StageProgress
    seen: bool = False

    def name(self, job: str) -> str:
        """Of its ScalePlan."""
        return names.own_plan_name(job, self.number)


@dataclass(frozen=True)
class AutoscalingState:
    """All about the master's own plans.

    Attributes:
        progress: how far the job is.
        shown: the newest plan, as the job's status has it.
        last_number: of the newest plan that was decided.
        open: that plan, until it has ended.
        decided_at: Unix seconds of that plan.
        failures: how many plans failed since the last one that did not.
        problem: why the last one failed; "" if it did not.
    """

    progress: StageProgress = field(default_factory=StageProgress)
    shown: AutoscalingStatus | None = None
    last_number: int = 0
    open: OpenOwnPlan | None = None
    decided_at: float = 0.0
    failures: int = 0
    problem: str = ""

    def rests(self, cadence: AutoscalingIntervals, now: float) -> bool:
        """Whether it is too soon after the last plan. A plan of the future was decided before the clock was set back."""
        return 0 <= now - self.decided_at < cadence.back_off(self.failures)


def open_plan(
    about: AutoscalingState, spec: ScalePlanSpec, after: StageProgress, now: float
) -> AutoscalingState:
    """A plan is to be carried out."""
    number = about.last_number + 1
    return replace(about, last_number=number, open=OpenOwnPlan(number, spec, after), decided_at=now)


def mark_plan_seen(about: AutoscalingState) -> AutoscalingState:
    """The open plan's object is there."""
    if about.open is None or about.open.seen:
        return about
    return replace(about, open=replace(about.open, seen=True))


def close_succeeded_plan(about: AutoscalingState, name: str) -> AutoscalingState:
    """The open plan was carried out by the ScalePlan of this name: what is shown is no longer to be done."""
    assert about.open is not None
    shown = about.shown
    if shown is not None:
        done: dict[str, object] = {"replica_resource_specs": {}, "migrate_pods": [], "reasons": {}}
        shown = shown.model_copy(
            update={**done, "notes": [f"{name} was carried out: {about.open.spec.reason}"]}
        )
    return replace(about, progress=about.open.after, shown=shown, open=None, failures=0, problem="")


def close_failed_plan(about: AutoscalingState, why: str, now: float) -> AutoscalingState:
    """The open plan could not be carried out: the job is asked about again from where it was, a good while later."""
    return replace(about, open=None, failures=about.failures + 1, problem=why[:2048], decided_at=now)


def withdraw_plan(about: AutoscalingState) -> AutoscalingState:
    """The open plan is no longer allowed, and nobody has seen it."""
    return replace(about, open=None)
