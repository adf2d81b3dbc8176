"""The state machine of one manual ScalePlan; pure.

`advance_run` moves a plan by at most one phase. The effects of a phase begin only after the plan's status
shows the phase (`ObservedJob.recorded`), so that a reader of the status knows what may be happening. A
failure does not wait for that. A plan either succeeds, or its effect `UNDO` restores the previous state.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from edl_workflows.core.jobs.scale_plan.model import (
    JOB_FAILED,
    JOB_FINISHED,
    NodeResource,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.core.kubernetes.objects import Count
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.training import Evaluation

MESSAGE_LIMIT = 2048
SAME_MODEL = 1e-4
"""Largest relative difference between two evaluations of the same model on the same records. They can differ
because other threads and servers sum in another order.
"""
SAME_ZERO = 1e-6
"""Largest absolute difference, for evaluations near 0."""
WAITING = "Waiting"
"""Reason of a plan that can't begin yet; its message says why."""


class PlanEffect(StrEnum):
    """What the job must do for the plan. Effects are idempotent."""

    ASK_CHECKPOINT = "ask-checkpoint"
    """The chief saves a checkpoint for `PlanRun.request`."""
    START_CHANGE = "start-change"
    """New members start, and the next version is prepared."""
    APPLY_COUNTS = "apply-counts"
    """The plan's counts and sizes take effect for all roles except that of the members."""
    DRAIN = "drain"
    """The processes of the active version stop between two steps."""
    ACTIVATE = "activate"
    """The next version becomes active, from the plan's checkpoint."""
    UNDO = "undo"
    """The state before the plan is restored."""


@dataclass(frozen=True)
class StepRecord:
    """One step; times are Unix seconds."""

    phase: ScalePlanPhase
    start: float
    finish: float | None = None
    message: str = ""

    def shift_times(self, seconds: float) -> "StepRecord":
        finish = None if self.finish is None else self.finish + seconds
        return replace(self, start=self.start + seconds, finish=finish)


@dataclass(frozen=True)
class PlanRun:
    """A plan in progress.

    Attributes:
        generation: generation of the spec that is carried out.
        serial: number of changes so far that the plan's status must show.
        begun: whether the effects of the present phase were requested.
        old_counts, old_sizes: desired counts and sizes before the plan.
        old_nodes: old sizes of the nodes that the plan replaces, without members, by "<role>:<rank>".
        number: number of the version that the plan activated; 0 before.
        broken: why the version that the plan activates, or activated, can't train.
        old_step_time: Unix seconds of the previous version's last step.
        before, after: the model's evaluation when it was saved for the switch, and after the new version
            restored it; None if there is none.
    """

    uid: str
    name: str
    spec: ScalePlanSpec
    created: float
    phase: ScalePlanPhase = ScalePlanPhase.PENDING
    reason: str = ""
    message: str = ""
    serial: int = 0
    begun: bool = False
    steps: tuple[StepRecord, ...] = ()
    checkpoint: CheckpointRef | None = None
    old_counts: dict[str, Count] = field(default_factory=dict)
    old_sizes: dict[str, NodeResource] = field(default_factory=dict)
    old_nodes: dict[str, NodeResource] = field(default_factory=dict)
    number: int = 0
    broken: str = ""
    old_step_time: float = 0.0
    resumed_step: int | None = None
    stall_seconds: float | None = None
    cluster_version: int | None = None
    generation: int = 0
    before: Evaluation | None = None
    after: Evaluation | None = None

    @property
    def request(self) -> str:
        """Id of the save that the present phase waits for."""
        return f"{self.uid}-{'switch' if self.phase is ScalePlanPhase.RESTARTING else 'checkpoint'}"

    @property
    def activated(self) -> bool:
        """Whether the plan's version is active, but has not made a step yet."""
        return self.phase is ScalePlanPhase.VERIFYING

    def shift_times(self, seconds: float) -> "PlanRun":
        """Move the steps' times by `seconds` after the clock was set or the master's process was suspended,
        so that each phase keeps its full time.
        """
        return replace(self, steps=tuple(step.shift_times(seconds) for step in self.steps))


@dataclass(frozen=True)
class ObservedJob:
    """The state of the job, as far as a plan depends on it.

    Attributes:
        recorded: whether the present phase has been written to the plan's status.
        cancelled: whether the plan was deleted.
        invalid: why the plan can't be carried out, naming the field; "" if it can.
        changes_members: whether the plan changes the parameter servers, or the training group of a
            collective job.
        surplus_members: whether the training group of a collective job has more members than the plan wants.
        settled: whether a cluster version trains and no change is under way.
        waits_for: why the job is not settled.
        save: the outcome of the save with the id `PlanRun.request`: the checkpoint, or why it failed; None
            while it is under way.
        evaluation: the model's evaluation when that checkpoint was saved.
        chief_ended: whether the chief has succeeded: all data is consumed, and no process is left that could
            save.
        broken: why the switch to the next version can't continue, such as a lost member; "" if it can.
        prepared: whether the next version's members and the workers are ready for the switch.
        drained: whether the processes of the active version have stopped; with parameter servers, all but
            the chief's.
        next_number: number of the next version.
        trained: number of the newest version that made a step.
        step_time: when the active version made its newest step, in Unix seconds.
        first_step: the first step that the active version reported.
        first_step_time: when the active version made its first step, in Unix seconds.
        scaled: whether each role has exactly the wanted nodes, running or succeeded.
    """

    recorded: bool
    cancelled: bool = False
    invalid: str = ""
    changes_members: bool = False
    surplus_members: bool = False
    settled: bool = False
    waits_for: str = ""
    save: CheckpointRef | str | None = None
    evaluation: Evaluation | None = None
    chief_ended: bool = False
    broken: str = ""
    prepared: bool = False
    drained: bool = False
    next_number: int = 0
    trained: int = 0
    step_time: float = 0.0
    first_step: int = 0
    first_step_time: float = 0.0
    scaled: bool = False


Advance = tuple[PlanRun, tuple[PlanEffect, ...]]


def start_run(uid: str, name: str, spec: ScalePlanSpec, now: float, generation: int = 0) -> PlanRun:
    first = StepRecord(ScalePlanPhase.PENDING, now)
    return PlanRun(uid, name, spec, now, serial=1, steps=(first,), generation=generation)


def role_request(spec: ScalePlanSpec, role: str) -> ReplicaResourceSpec | None:
    """What a plan requests for a role."""
    return next((request for name, request in spec.replica_resource_specs.items() if name == role), None)


def changes_members(spec: ScalePlanSpec, role: str, count: int, pods: frozenset[str]) -> bool:
    """Whether carrying out `spec` changes the members of the cluster version.

    Args:
        spec: spec of the plan.
        role: role of the members.
        count: number of members.
        pods: names of their pods.
    """
    request = role_request(spec, role)
    other_count = request is not None and request.replicas is not None and request.replicas != count
    return other_count or any(pod.name in pods for pod in spec.migrate_pods)


def advance_run(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    """The next state of a plan, and its effects on the job."""
    if run.phase.final:
        return run, ()
    trains = run.activated and world.trained >= run.number
    failed = None if trains else _failure(run, world, now)
    if failed is not None:
        return failed
    if not world.recorded:
        return run, ()
    return _HANDLERS[run.phase](run, world, now)


def _failure(run: PlanRun, world: ObservedJob, now: float) -> Advance | None:
    if world.cancelled and not run.activated:
        return _fail(run, now, "Cancelled", "the plan was deleted")
    if run.phase is ScalePlanPhase.PENDING and world.invalid:
        return _fail(run, now, "InvalidPlan", world.invalid)
    if world.chief_ended and run.phase in (
        ScalePlanPhase.CHECKPOINTING,
        ScalePlanPhase.MIGRATING,
        ScalePlanPhase.RESTARTING,
    ):
        return _fail(run, now, JOB_FINISHED, "the chief has ended: nothing is left to train")
    if world.broken and run.phase in (
        ScalePlanPhase.MIGRATING,
        ScalePlanPhase.RESTARTING,
        ScalePlanPhase.VERIFYING,
    ):
        return _fail(run, now, "SwitchFailed", world.broken)
    if run.activated and (difference := describe_changed_model(run)):
        return _fail(run, now, "VerificationFailed", difference)
    if _timed_out(run, now):
        limit = run.spec.step_timeout_seconds
        return _fail(
            run, now, "StepTimeout", f"{run.phase} took more than {limit} s (spec.stepTimeoutSeconds)"
        )
    return None


def describe_changed_model(run: PlanRun) -> str:
    """How the model of the plan's version differs from the model before the switch; "" if it is the same or
    can't be compared.
    """
    before, after = run.before, run.after
    if before is None or before.value is None or after is None:
        return ""
    comparison = f"on the same records the model evaluated to {before.value:.9g} before the switch"
    back = "; the plan is rolled back, and the previous version trains on"
    if after.value is None:
        return f"{comparison}, and could not be evaluated after it ({after.problem}){back}"
    if math.isclose(before.value, after.value, rel_tol=SAME_MODEL, abs_tol=SAME_ZERO):
        return ""
    return (
        f"{comparison}, and to {after.value:.9g} after it: the model depends on what the plan changes{back}"
    )


def end_with_job(run: PlanRun, now: float, *, succeeded: bool) -> PlanRun:
    """Fail the plan, because the job ended before it."""
    if run.phase.final:
        return run
    reason = JOB_FINISHED if succeeded else JOB_FAILED
    return _fail(run, now, reason, "the job ended before the plan did")[0]


def _pending(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    if not world.settled:
        return _waiting(run, world.waits_for), ()
    if world.changes_members or run.spec.checkpoint:
        return _enter(run, ScalePlanPhase.CHECKPOINTING, now), ()
    return _enter(run, ScalePlanPhase.SCALING, now), ()


def _waiting(run: PlanRun, message: str) -> PlanRun:
    if run.message == message:
        return run
    return replace(run, reason=WAITING if message else "", message=message, serial=run.serial + 1)


def _checkpointing(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    if isinstance(world.save, str):
        return _fail(run, now, "CheckpointFailed", world.save)
    if world.save is None:
        return run, (PlanEffect.ASK_CHECKPOINT,)  # repeated, since a lost member may have voided the request
    return _enter(replace(run, checkpoint=world.save), ScalePlanPhase.CHECKPOINTED, now), ()


def _checkpointed(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    if world.changes_members:
        return _enter(run, ScalePlanPhase.MIGRATING, now), ()
    if run.spec.replica_resource_specs or run.spec.migrate_pods:
        return _enter(run, ScalePlanPhase.SCALING, now), ()
    return _enter(run, ScalePlanPhase.SUCCEEDED, now), ()


def _migrating(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    if not run.begun:
        if not world.settled:  # a member was lost after the checkpoint, and must be replaced first
            return run, ()
        return replace(run, begun=True), (PlanEffect.START_CHANGE, PlanEffect.APPLY_COUNTS)
    return (_enter(run, ScalePlanPhase.RESTARTING, now), ()) if world.prepared else (run, ())


def _restarting(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    if not run.begun:
        return replace(run, begun=True), (PlanEffect.DRAIN,)
    if not world.drained:
        return run, ()
    if isinstance(world.save, str):
        return _fail(run, now, "CheckpointFailed", world.save)
    if world.save is None:
        return run, (PlanEffect.ASK_CHECKPOINT,)
    switched = replace(
        run,
        checkpoint=world.save,
        number=world.next_number,
        old_step_time=world.step_time,
        before=world.evaluation,
    )
    return _enter(switched, ScalePlanPhase.VERIFYING, now), (PlanEffect.ACTIVATE,)


def _verifying(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    # A process reports that it trains shortly before it reports a step.
    if world.trained < run.number or not world.first_step_time:
        return run, ()
    stall = world.first_step_time - run.old_step_time
    resumed = replace(
        run,
        resumed_step=world.first_step,
        stall_seconds=round(max(0.0, stall), 3) if run.old_step_time else None,
        cluster_version=run.number,
    )
    return _enter(resumed, ScalePlanPhase.SUCCEEDED, now), ()


def _scaling(run: PlanRun, world: ObservedJob, now: float) -> Advance:
    if not run.begun:
        return replace(run, begun=True), (PlanEffect.APPLY_COUNTS,)
    if world.settled and world.surplus_members:
        # The group was smaller when the plan began, and has recovered with workers that were to leave.
        return _enter(run, ScalePlanPhase.CHECKPOINTING, now), ()
    return (_enter(run, ScalePlanPhase.SUCCEEDED, now), ()) if world.scaled else (run, ())


_HANDLERS: dict[ScalePlanPhase, Callable[[PlanRun, ObservedJob, float], Advance]] = {
    ScalePlanPhase.PENDING: _pending,
    ScalePlanPhase.CHECKPOINTING: _checkpointing,
    ScalePlanPhase.CHECKPOINTED: _checkpointed,
    ScalePlanPhase.MIGRATING: _migrating,
    ScalePlanPhase.RESTARTING: _restarting,
    ScalePlanPhase.VERIFYING: _verifying,
    ScalePlanPhase.SCALING: _scaling,
}


def _enter(run: PlanRun, phase: ScalePlanPhase, now: float, message: str = "") -> PlanRun:
    last = replace(run.steps[-1], finish=now, message=message)
    steps = (*run.steps[:-1], last) if phase.final else (*run.steps[:-1], last, StepRecord(phase, now))
    return replace(run, phase=phase, steps=steps, begun=False, serial=run.serial + 1, reason="", message="")


def _fail(run: PlanRun, now: float, reason: str, message: str) -> Advance:
    text = message[:MESSAGE_LIMIT]
    untouched = run.phase is ScalePlanPhase.PENDING
    failed = replace(_enter(run, ScalePlanPhase.FAILED, now, text), reason=reason, message=text)
    return failed, () if untouched else (PlanEffect.UNDO,)


def _timed_out(run: PlanRun, now: float) -> bool:
    waits_its_turn = run.phase is ScalePlanPhase.PENDING
    return not waits_its_turn and now - run.steps[-1].start > run.spec.step_timeout_seconds
