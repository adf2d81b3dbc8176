"""The stored state of a job's autoscaling by its own master: the optimizer's progress, and the
ScalePlan in which its newest advice is carried out.

Pure values and their transitions. `autoscale_steps` decides what to ask the optimizer and applies its answer.

The intervals are those of DLRover's `PSTrainingAutoScaler`: a sample every 15 s, a question to the optimizer
every 30 s but only if the nodes have not changed for 60 s, and a plan at most every 300 s.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.scale_plan.model import ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.core.scaling.dlrover.ps_stages import StageProgress
from edl_workflows.core.scaling.dlrover.resources import Advice

LOCAL: Literal["local"] = "local"
BRAIN: Literal["brain"] = "brain"

STARTING_SAMPLES = 5
"""Samples with progress that a job needs before its optimizer is asked for the first time (as in DLRover)."""
MAX_BACK_OFF = 3_600.0
"""Longest back-off, in seconds, after repeated failures of plans."""


@dataclass(frozen=True)
class AutoscalingIntervals:
    """All intervals of autoscaling; they are proportional to `period`.

    Attributes:
        period: least seconds between two plans that are carried out.
    """

    period: float = 300.0

    @property
    def sample(self) -> float:
        """Seconds between two samples."""
        return self.period / 20

    @property
    def look(self) -> float:
        """Seconds between two requests to the optimizer."""
        return self.period / 10

    @property
    def steady(self) -> float:
        """Seconds for which the job's nodes must not have changed."""
        return self.period / 5

    def back_off(self, failures: int) -> float:
        """Seconds between two plans after this many failures in a row."""
        return Backoff(self.period, MAX_BACK_OFF).delay(failures + 1) if failures else self.period


@dataclass(frozen=True)
class OptimizerAnswer:
    """An optimizer's answer.

    Attributes:
        progress: the job's progress once the advice is carried out.
        optimizer: which optimizer answered.
    """

    advice: Advice
    progress: StageProgress
    optimizer: Literal["local", "brain"] = LOCAL


@dataclass(frozen=True)
class AutoscalingDecision:
    """The decision to carry out advice in a ScalePlan that is not known to have ended.

    Attributes:
        number: number of the ScalePlan among the job's own.
        spec: spec of its ScalePlan.
        after: the optimizer's progress to record when the plan has succeeded.
        seen: whether the ScalePlan was observed in the cluster.
    """

    number: int
    spec: ScalePlanSpec
    after: StageProgress
    seen: bool = False

    def name(self, job: str) -> str:
        """Name of its ScalePlan."""
        return names.own_plan_name(job, self.number)


@dataclass(frozen=True)
class AutoscalingState:
    """The autoscaling of the job by its master.

    Attributes:
        progress: the optimizer's progress with the job.
        shown: the newest advice, as shown in the job's status.
        last_number: number of the newest decision.
        open: that decision, until its ScalePlan has ended.
        decided_at: Unix seconds at which it was decided.
        failures: plans that failed since the last success.
        problem: why the last plan failed; else "".
    """

    progress: StageProgress = field(default_factory=StageProgress)
    shown: AutoscalingStatus | None = None
    last_number: int = 0
    open: AutoscalingDecision | None = None
    decided_at: float = 0.0
    failures: int = 0
    problem: str = ""

    def rests(self, cadence: AutoscalingIntervals, now: float) -> bool:
        """Whether it is too soon for another plan. If the newest decision lies in the future, the clock was
        set back, and the decision is ignored.
        """
        return 0 <= now - self.decided_at < cadence.back_off(self.failures)


def open_plan(
    about: AutoscalingState, spec: ScalePlanSpec, after: StageProgress, now: float
) -> AutoscalingState:
    """Record the decision to carry out a plan."""
    number = about.last_number + 1
    return replace(about, last_number=number, open=AutoscalingDecision(number, spec, after), decided_at=now)


def mark_plan_seen(about: AutoscalingState) -> AutoscalingState:
    if about.open is None or about.open.seen:
        return about
    return replace(about, open=replace(about.open, seen=True))


def close_succeeded_plan(about: AutoscalingState, name: str) -> AutoscalingState:
    """Record that the ScalePlan `name` carried out the open plan, which is no longer shown as pending."""
    assert about.open is not None
    shown = about.shown
    if shown is not None:
        done: dict[str, object] = {"replica_resource_specs": {}, "migrate_pods": [], "reasons": {}}
        shown = shown.model_copy(
            update={**done, "notes": [f"{name} was carried out: {about.open.spec.reason}"]}
        )
    return replace(about, progress=about.open.after, shown=shown, open=None, failures=0, problem="")


def close_failed_plan(about: AutoscalingState, reason: str, now: float) -> AutoscalingState:
    """Record that the open plan failed. The job's progress stays as it was before the plan, and the
    optimizer is asked again after a back-off.
    """
    return replace(about, open=None, failures=about.failures + 1, problem=reason[:2048], decided_at=now)


def withdraw_plan(about: AutoscalingState) -> AutoscalingState:
    """Drop an open plan that is no longer allowed and whose ScalePlan does not exist yet."""
    return replace(about, open=None)
