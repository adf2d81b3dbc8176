"""Laws of the state machine of plans alone, in any observed state of the job."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.rollouts.rollout import (
    ObservedJob,
    Rollout,
    RolloutEffect,
    advance_rollout,
    start_rollout,
)

ORDER = list(ScalePlanPhase)
SERVERS = ScalePlanSpec(
    replica_resource_specs={"ps": ReplicaResourceSpec(replicas=3)}, step_timeout_seconds=50
)
SPECS = st.sampled_from(
    [
        SERVERS,
        ScalePlanSpec(
            replica_resource_specs={"worker": ReplicaResourceSpec(replicas=3)}, step_timeout_seconds=50
        ),
        ScalePlanSpec(checkpoint=True, step_timeout_seconds=50),
    ]
)
RARELY = st.sampled_from([False] * 9 + [True])
OFTEN = st.sampled_from([True] * 4 + [False])
WORLDS = st.builds(
    ObservedJob,
    recorded=OFTEN,
    cancelled=RARELY,
    invalid=RARELY.map(lambda wrong: "spec.x: wrong" if wrong else ""),
    settled=OFTEN,
    save=st.sampled_from(
        [None, CheckpointRef(uri="/c", step=5), CheckpointRef(uri="/c", step=5), "disk full"]
    ),
    broken=RARELY.map(lambda broken: "ps-1 was lost" if broken else ""),
    prepared=OFTEN,
    drained=OFTEN,
    next_number=st.just(2),
    trained=st.sampled_from([1, 2, 2]),
    step_time=st.just(10.0),
    first_step=st.just(6),
    first_step_time=st.just(11.5),
    scaled=OFTEN,
)
STEPS = st.lists(st.tuples(WORLDS, st.sampled_from([0.0, 1.0, 1.0, 1.0, 60.0])), max_size=40)


def _run(
    spec: ScalePlanSpec, worlds: list[tuple[ObservedJob, float]]
) -> list[tuple[Rollout, tuple[RolloutEffect, ...]]]:
    """All states of a plan, each with the effects that led to it."""
    rollout, now = start_rollout("uid", "plan", spec, 0.0), 0.0
    history: list[tuple[Rollout, tuple[RolloutEffect, ...]]] = [(rollout, ())]
    changes = "ps" in spec.replica_resource_specs
    for world, pause in worlds:
        now += pause
        rollout, effects = advance_rollout(rollout, replace(world, changes_members=changes), now)
        history.append((rollout, effects))
    return history


@given(SPECS, STEPS)
def test_phases_go_forward_and_final_ones_stay(
    spec: ScalePlanSpec, worlds: list[tuple[ObservedJob, float]]
) -> None:
    """No phase of a plan occurs twice, and none follows a final one."""
    history = [rollout for rollout, _ in _run(spec, worlds)]
    for before, after in itertools.pairwise(history):
        if before.phase.final:
            assert after == before
        elif after.phase is not before.phase:
            assert ORDER.index(after.phase) > ORDER.index(before.phase)


@given(SPECS, STEPS)
def test_whatever_was_begun_is_finished_or_taken_back(
    spec: ScalePlanSpec, worlds: list[tuple[ObservedJob, float]]
) -> None:
    """A plan that fails after it began is undone exactly once, as its last effect; a plan that succeeds is
    never undone."""
    history = _run(spec, worlds)
    last = history[-1][0]
    effects = [effect for _, given_effects in history for effect in given_effects]
    began = any(
        rollout.phase not in (ScalePlanPhase.PENDING, ScalePlanPhase.FAILED) for rollout, _ in history
    )
    assert effects.count(RolloutEffect.UNDO) == (1 if last.phase is ScalePlanPhase.FAILED and began else 0)
    assert RolloutEffect.UNDO not in effects[:-1]
    assert effects.count(RolloutEffect.ACTIVATE) <= 1
    if last.phase is ScalePlanPhase.SUCCEEDED and "ps" in spec.replica_resource_specs:
        assert effects.count(RolloutEffect.ACTIVATE) == 1


def _activate() -> Rollout:
    """A plan whose version is active and has not trained yet."""
    fine = ObservedJob(
        recorded=True,
        changes_members=True,
        settled=True,
        save=CheckpointRef(uri="/c", step=5),
        prepared=True,
        drained=True,
        next_number=2,
        trained=1,
        step_time=10.0,
    )
    rollout = start_rollout("uid", "plan", SERVERS, 0.0)
    while rollout.phase is not ScalePlanPhase.VERIFYING:
        rollout, _ = advance_rollout(rollout, fine, 0.0)
    return rollout


@given(WORLDS, st.booleans())
def test_a_version_that_trains_is_never_taken_back(world: ObservedJob, reported: bool) -> None:
    """Once the new version trains, a plan can only succeed, whatever else fails. It succeeds with the first
    step that is reported."""
    rollout = _activate()
    first = world.first_step_time if reported else 0.0
    trains = replace(world, changes_members=True, trained=rollout.number, first_step_time=first)
    after, effects = advance_rollout(rollout, trains, rollout.steps[-1].start + 1000)
    ended = ScalePlanPhase.SUCCEEDED if world.recorded and reported else ScalePlanPhase.VERIFYING
    assert (after.phase, effects) == (ended, ())


@given(SPECS, STEPS)
def test_nothing_begins_before_its_phase_is_recorded(
    spec: ScalePlanSpec, worlds: list[tuple[ObservedJob, float]]
) -> None:
    """While its status has not been recorded, a plan has no effect, and it stays Pending or fails."""
    blind = [(replace(world, recorded=False, trained=1), pause) for world, pause in worlds]
    for rollout, effects in _run(spec, blind):
        assert rollout.phase in (ScalePlanPhase.PENDING, ScalePlanPhase.FAILED)
        assert effects == ()


@given(SPECS, STEPS)
def test_each_change_is_to_be_recorded(spec: ScalePlanSpec, worlds: list[tuple[ObservedJob, float]]) -> None:
    """The serial increases exactly when the status shows something new, and the times of steps have no
    gaps."""
    history = [rollout for rollout, _ in _run(spec, worlds)]
    for before, after in itertools.pairwise(history):
        assert (after.serial > before.serial) == (after.phase is not before.phase)
        if after.serial == before.serial:
            assert views.plan_status(after) == views.plan_status(before)
    for step, following in itertools.pairwise(history[-1].steps):
        assert step.finish == following.start
