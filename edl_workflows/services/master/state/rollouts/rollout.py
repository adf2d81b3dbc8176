"""The state machine of a rollout, the execution of one manual ScalePlan; pure.

`advance_rollout` moves a plan by at most one phase. The effects of a phase begin only after the plan's status
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
MAX_NAMED = 5
"""Variables listed by name."""
WAITING = "Waiting"
"""Reason of a plan that can't begin yet; its message says why."""


class RolloutEffect(StrEnum):
    """What the job must do for the plan. Effects are idempotent."""

    ASK_CHECKPOINT = "ask-checkpoint"
    """The chief saves a checkpoint for `Rollout.request`."""
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
class Rollout:
    """The execution of a manual ScalePlan.

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

    def shift_times(self, seconds: float) -> "Rollout":
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
        save: the outcome of the save with the id `Rollout.request`: the checkpoint, or why it failed; None
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


Advance = tuple[Rollout, tuple[RolloutEffect, ...]]


def start_rollout(uid: str, name: str, spec: ScalePlanSpec, now: float, generation: int = 0) -> Rollout:
    first = StepRecord(ScalePlanPhase.PENDING, now)
    return Rollout(uid, name, spec, now, serial=1, steps=(first,), generation=generation)


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


def advance_rollout(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    """The next state of a plan, and its effects on the job."""
    if rollout.phase.final:
        return rollout, ()
    trains = rollout.activated and world.trained >= rollout.number
    failed = None if trains else _failure(rollout, world, now)
    if failed is not None:
        return failed
    if not world.recorded:
        return rollout, ()
    return _HANDLERS[rollout.phase](rollout, world, now)


def _failure(rollout: Rollout, world: ObservedJob, now: float) -> Advance | None:
    if world.cancelled and not rollout.activated:
        return _fail(rollout, now, "Cancelled", "the plan was deleted")
    if rollout.phase is ScalePlanPhase.PENDING and world.invalid:
        return _fail(rollout, now, "InvalidPlan", world.invalid)
    if world.chief_ended and rollout.phase in (
        ScalePlanPhase.CHECKPOINTING,
        ScalePlanPhase.MIGRATING,
        ScalePlanPhase.RESTARTING,
    ):
        return _fail(rollout, now, JOB_FINISHED, "the chief has ended: nothing is left to train")
    if world.broken and rollout.phase in (
        ScalePlanPhase.MIGRATING,
        ScalePlanPhase.RESTARTING,
        ScalePlanPhase.VERIFYING,
    ):
        return _fail(rollout, now, "SwitchFailed", world.broken)
    if rollout.activated and (difference := describe_changed_model(rollout)):
        return _fail(rollout, now, "VerificationFailed", difference)
    if _timed_out(rollout, now):
        limit = rollout.spec.step_timeout_seconds
        return _fail(
            rollout, now, "StepTimeout", f"{rollout.phase} took more than {limit} s (spec.stepTimeoutSeconds)"
        )
    return None


def describe_changed_model(rollout: Rollout) -> str:
    """How the model of the plan's version differs from the model before the switch; "" if it is the same or
    can't be compared.
    """
    before, after = rollout.before, rollout.after
    if before is None or after is None:
        return ""
    back = "; the plan is rolled back, and the previous version trains on"
    if changed := _changed_variables(before, after):
        return f"{changed}{back}"
    if before.value is None:
        return ""
    comparison = f"on the same records the model evaluated to {before.value:.9g} before the switch"
    if after.value is None:
        return f"{comparison}, and could not be evaluated after it ({after.problem}){back}"
    if math.isclose(before.value, after.value, rel_tol=SAME_MODEL, abs_tol=SAME_ZERO):
        return ""
    return (
        f"{comparison}, and to {after.value:.9g} after it: the model depends on what the plan changes{back}"
    )


def _changed_variables(before: Evaluation, after: Evaluation) -> str:
    """Describe variables that differ after the switch; "" if none does, or if they were not sampled."""
    changed = sorted(
        name for name, digest in before.fingerprints.items() if after.fingerprints.get(name) != digest
    )
    if changed and not after.fingerprints:
        return "the variables could not be read after the switch, to compare them"
    if not changed:
        return ""
    more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
    return f"variables differ from those before the switch: {', '.join(changed[:MAX_NAMED])}{more}"


def end_with_job(rollout: Rollout, now: float, *, succeeded: bool) -> Rollout:
    """Fail the plan, because the job ended before it."""
    if rollout.phase.final:
        return rollout
    reason = JOB_FINISHED if succeeded else JOB_FAILED
    return _fail(rollout, now, reason, "the job ended before the plan did")[0]


def _pending(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    if not world.settled:
        return _waiting(rollout, world.waits_for), ()
    if world.changes_members or rollout.spec.checkpoint:
        return _enter(rollout, ScalePlanPhase.CHECKPOINTING, now), ()
    return _enter(rollout, ScalePlanPhase.SCALING, now), ()


def _waiting(rollout: Rollout, message: str) -> Rollout:
    if rollout.message == message:
        return rollout
    return replace(rollout, reason=WAITING if message else "", message=message, serial=rollout.serial + 1)


def _checkpointing(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    if isinstance(world.save, str):
        return _fail(rollout, now, "CheckpointFailed", world.save)
    if world.save is None:  # asked again each time, since a lost member may have voided the request
        return rollout, (RolloutEffect.ASK_CHECKPOINT,)
    return _enter(replace(rollout, checkpoint=world.save), ScalePlanPhase.CHECKPOINTED, now), ()


def _checkpointed(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    if world.changes_members:
        return _enter(rollout, ScalePlanPhase.MIGRATING, now), ()
    if rollout.spec.replica_resource_specs or rollout.spec.migrate_pods:
        return _enter(rollout, ScalePlanPhase.SCALING, now), ()
    return _enter(rollout, ScalePlanPhase.SUCCEEDED, now), ()


def _migrating(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    if not rollout.begun:
        if not world.settled:  # a member was lost after the checkpoint, and must be replaced first
            return rollout, ()
        return replace(rollout, begun=True), (RolloutEffect.START_CHANGE, RolloutEffect.APPLY_COUNTS)
    return (_enter(rollout, ScalePlanPhase.RESTARTING, now), ()) if world.prepared else (rollout, ())


def _restarting(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    if not rollout.begun:
        return replace(rollout, begun=True), (RolloutEffect.DRAIN,)
    if not world.drained:
        return rollout, ()
    if isinstance(world.save, str):
        return _fail(rollout, now, "CheckpointFailed", world.save)
    if world.save is None:
        return rollout, (RolloutEffect.ASK_CHECKPOINT,)
    switched = replace(
        rollout,
        checkpoint=world.save,
        number=world.next_number,
        old_step_time=world.step_time,
        before=world.evaluation,
    )
    return _enter(switched, ScalePlanPhase.VERIFYING, now), (RolloutEffect.ACTIVATE,)


def _verifying(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    # A process reports that it trains shortly before it reports a step.
    if world.trained < rollout.number or not world.first_step_time:
        return rollout, ()
    stall = world.first_step_time - rollout.old_step_time
    resumed = replace(
        rollout,
        resumed_step=world.first_step,
        stall_seconds=round(max(0.0, stall), 3) if rollout.old_step_time else None,
        cluster_version=rollout.number,
    )
    return _enter(resumed, ScalePlanPhase.SUCCEEDED, now), ()


def _scaling(rollout: Rollout, world: ObservedJob, now: float) -> Advance:
    if not rollout.begun:
        return replace(rollout, begun=True), (RolloutEffect.APPLY_COUNTS,)
    if world.settled and world.surplus_members:
        # The group was smaller when the plan began, and has recovered with workers that were to leave.
        return _enter(rollout, ScalePlanPhase.CHECKPOINTING, now), ()
    return (_enter(rollout, ScalePlanPhase.SUCCEEDED, now), ()) if world.scaled else (rollout, ())


_HANDLERS: dict[ScalePlanPhase, Callable[[Rollout, ObservedJob, float], Advance]] = {
    ScalePlanPhase.PENDING: _pending,
    ScalePlanPhase.CHECKPOINTING: _checkpointing,
    ScalePlanPhase.CHECKPOINTED: _checkpointed,
    ScalePlanPhase.MIGRATING: _migrating,
    ScalePlanPhase.RESTARTING: _restarting,
    ScalePlanPhase.VERIFYING: _verifying,
    ScalePlanPhase.SCALING: _scaling,
}


def _enter(rollout: Rollout, phase: ScalePlanPhase, now: float, message: str = "") -> Rollout:
    last = replace(rollout.steps[-1], finish=now, message=message)
    steps = (
        (*rollout.steps[:-1], last) if phase.final else (*rollout.steps[:-1], last, StepRecord(phase, now))
    )
    return replace(
        rollout, phase=phase, steps=steps, begun=False, serial=rollout.serial + 1, reason="", message=""
    )


def _fail(rollout: Rollout, now: float, reason: str, message: str) -> Advance:
    text = message[:MESSAGE_LIMIT]
    untouched = rollout.phase is ScalePlanPhase.PENDING
    failed = replace(_enter(rollout, ScalePlanPhase.FAILED, now, text), reason=reason, message=text)
    return failed, () if untouched else (RolloutEffect.UNDO,)


def _timed_out(rollout: Rollout, now: float) -> bool:
    waits_its_turn = rollout.phase is ScalePlanPhase.PENDING
    return not waits_its_turn and now - rollout.steps[-1].start > rollout.spec.step_timeout_seconds
