"""Between the plan machine (`plans`) and the rest of the state: what a plan sees, and what its effects do."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from edl_workflows.jobs import names
from edl_workflows.jobs.scale_plan.model import NodeResource, Phase, PodMeta, ScalePlanSpec
from edl_workflows.master.state import (
    autoscale_steps,
    checkpoints,
    plan_checks,
    plans,
    ps_manager,
    version_steps,
    worker_manager,
)
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.nodes import Node
from edl_workflows.master.state.plans import Effect, PlanRun, World
from edl_workflows.master.state.ps_manager import Cause
from edl_workflows.master.state.settings import ELASTIC_TYPES, merged

REMEMBERED_PLANS = 100
"""Uids of finished plans: a cache of the cluster's objects may still show them unfinished for a while."""


def step(state: JobState, now: float) -> None:
    """Takes the next plan up, or the present one a phase on."""
    if state.plan is not None and state.plan.phase.final and _through(state, state.plan):
        state.finished_plans = (*state.finished_plans, state.plan.uid)[-REMEMBERED_PLANS:]
        state.plan = None
    elif state.plan is not None and state.plan.phase is Phase.PENDING:
        state.plan = _as_it_stands(state, state.plan)
    if state.plan is None:
        _take_up(state, now)
    if state.plan is None or state.plan.phase.final:
        return
    if state.plan.phase is Phase.PENDING:
        state.plan = replace(state.plan, spec=_ranks_as_pods(state, state.plan.spec))
    state.plan, effects = plans.advance(state.plan, _world(state, state.plan), now)
    for effect in effects:
        _EFFECTS[effect](state, state.plan, now)


def finish(state: JobState, now: float) -> None:
    """The job is over: so is its plan."""
    if state.plan is not None:
        state.plan = plans.finish_with_job(state.plan, now)


def _through(state: JobState, plan: PlanRun) -> bool:
    """Whether the end stands in the plan's status, or nobody is there to read it."""
    return state.recorded_serial >= plan.serial or _deleted(state, plan)


def _as_it_stands(state: JobState, plan: PlanRun) -> PlanRun | None:
    """A plan that has not begun may still be edited, or be ended by the controller."""
    seen = next((seen for seen in state.plans_seen or () if seen.uid == plan.uid), None)
    if seen is None:
        return plan
    if seen.phase is not None and seen.phase.final:
        state.finished_plans = (*state.finished_plans, plan.uid)[-REMEMBERED_PLANS:]
        return None
    return replace(plan, spec=seen.spec, generation=seen.generation)


def _deleted(state: JobState, plan: PlanRun) -> bool:
    return state.plans_seen is not None and all(seen.uid != plan.uid for seen in state.plans_seen)


def _take_up(state: JobState, now: float) -> None:
    for seen in state.plans_seen or ():
        over = seen.phase is not None and seen.phase.final
        if not over and seen.uid not in state.finished_plans:
            state.plan = plans.start(seen.uid, seen.name, seen.spec, now, seen.generation)
            state.recorded_serial = 0
            return


def _ranks_as_pods(state: JobState, spec: ScalePlanSpec) -> ScalePlanSpec:
    """Ranks replaced by the pods that hold them now; one that nobody holds stays, and `plan_checks` finds it."""
    pods, left = [], {}
    for rank, size in sorted(spec.migrate_ranks.items()):
        node = state.nodes.at_rank(names.PS_TYPE, rank)
        if node is None:
            left[rank] = size
        else:
            pods.append(PodMeta(name=_pod(state, node.type, node.id), rank_index=rank, resource=size))
    return spec.model_copy(update={"migrate_pods": [*spec.migrate_pods, *pods], "migrate_ranks": left})


def _world(state: JobState, run: PlanRun) -> World:
    versions, spec = state.versions, run.spec
    change = versions.change
    ps = versions.active.ps if versions.active else ()
    saved = state.checkpoints.result(run.request)
    trainers = state.trainers
    chief = state.chief
    return World(
        recorded=state.recorded_serial >= run.serial,
        cancelled=_deleted(state, run),
        invalid=_problem(state, run),
        changes_ps=plans.changes_ps(
            spec, len(ps), frozenset(_pod(state, names.PS_TYPE, node) for node in ps)
        ),
        settled=versions.settled,
        save=saved.ref if isinstance(saved, checkpoints.Saved) else saved,
        broken=_broken(state, run),
        prepared=_prepared(state, trainers),
        drained=change is not None
        and change.draining
        and all(str(node) in change.drained for node in trainers if node != chief),
        next_number=change.number if change else 0,
        trained=versions.trained,
        step_time=state.steps.time,
        first_step=state.steps.first,
        first_step_time=state.steps.first_time,
        scaled=_scaled(state),
    )


def _problem(state: JobState, run: PlanRun) -> str:
    if forbidden := autoscale_steps.forbidden(state, run):
        return forbidden
    return plan_checks.problem(run.spec, _present(state)) if state.versions.settled else ""


def _pod(state: JobState, node_type: str, node_id: int) -> str:
    return names.node_name(state.settings.name, node_type, node_id)


def _present(state: JobState) -> plan_checks.Present:
    live = {_pod(state, node.type, node.id): node for node in state.nodes if node.live}
    return plan_checks.Present(state.settings, state.counts, state.sizes, live)


def _broken(state: JobState, run: PlanRun) -> str:
    versions = state.versions
    change = versions.change
    if run.activated and versions.trained >= run.number:
        return ""
    if run.broken:
        return run.broken
    if run.activated:
        if state.starts_from_damaged:
            return state.checkpoints.damaged[-1].error
        lost = state.lost_ps(versions.active.ps) if versions.active else []
    elif change is not None and change.cause is Cause.PLAN:
        lost = state.lost_ps((*(versions.active.ps if versions.active else ()), *change.target))
    else:
        return ""
    known = state.ps_by_id
    return "; ".join(
        f"parameter server {names.PS_TYPE}-{node_id} was lost"
        + (f" ({known[node_id].exit_reason})" if node_id in known else "")
        for node_id in dict.fromkeys(lost)
    )


def _prepared(state: JobState, trainers: list[Node]) -> bool:
    change = state.versions.change
    return (
        change is not None
        and ps_manager.ps_ready(state.versions)
        and _scaled(state)
        and all(str(node) in change.ready for node in trainers)
    )


def _scaled(state: JobState) -> bool:
    return all(
        worker_manager.satisfied(state.nodes, role, state.counts.get(role, 0))
        for role in ELASTIC_TYPES
        if role in state.settings.roles
    )


def _ask_checkpoint(state: JobState, run: PlanRun, _now: float) -> None:
    state.checkpoints = checkpoints.ask(state.checkpoints, run.request)


def _start_change(state: JobState, run: PlanRun, now: float) -> None:
    active = state.versions.active
    assert active is not None
    wanted = plans.wanted(run.spec, names.PS_TYPE)
    size = state.sizes.get(names.PS_TYPE, NodeResource())
    resize = ps_manager.Resize(
        count=wanted.replicas if wanted else None,
        migrate={
            node.id: merged(to, node.resource)
            for node, to in _migrations(state, run)
            if node.type == names.PS_TYPE
        },
        resource=merged(wanted.resource, size) if wanted else size,
    )
    target = ps_manager.resize(state.nodes, active.ps, resize, now)
    state.versions = ps_manager.begin(state.versions, Cause.PLAN, target)


def _apply_counts(state: JobState, run: PlanRun, now: float) -> None:
    state.plan = replace(run, old_counts=dict(state.counts), old_sizes=dict(state.sizes))
    for role, wanted in run.spec.replica_resource_specs.items():
        if wanted.replicas is not None and role != names.PS_TYPE:
            state.counts[role] = wanted.replicas
        _take_size(state, role, run)
    workers = [
        (node, merged(to, node.resource))
        for node, to in _migrations(state, run)
        if node.type != names.PS_TYPE
    ]
    for node, _ in workers:
        state.shards.release_node(node.ref)
    worker_manager.migrate(state.nodes, workers, now)


def _take_size(state: JobState, role: str, run: PlanRun) -> None:
    wanted = plans.wanted(run.spec, role)
    if wanted is not None:
        state.sizes[role] = merged(wanted.resource, state.sizes.get(role, NodeResource()))


def _migrations(state: JobState, run: PlanRun) -> list[tuple[Node, NodeResource]]:
    """The nodes to migrate; one that was replaced meanwhile is followed to its successor."""
    found = []
    for pod in run.spec.migrate_pods:
        node = state.nodes.by_pod(state.settings.name, pod.name)
        while node is not None and node.replaced_by >= 0:
            node = state.nodes.find(node.type, node.replaced_by)
        if node is not None:
            found.append((node, pod.resource))
    return found


def _drain(state: JobState, _run: PlanRun, _now: float) -> None:
    state.versions = ps_manager.drain(state.versions)


def _activate(state: JobState, run: PlanRun, _now: float) -> None:
    assert run.checkpoint is not None
    switch = replace(run, phase=Phase.RESTARTING).request
    saved = state.checkpoints.result(switch)
    assert isinstance(saved, checkpoints.Saved)
    version_steps.activate(state, saved)
    count = len(state.versions.active.ps) if state.versions.active else 0
    state.counts[names.PS_TYPE] = count


def _undo(state: JobState, run: PlanRun, _now: float) -> None:
    versions = state.versions
    state.checkpoints = checkpoints.withdraw(state.checkpoints)
    if run.old_counts:
        state.counts, state.sizes = dict(run.old_counts), dict(run.old_sizes)
    active = versions.active
    if run.number and active is not None and active.number == run.number:
        target = ps_manager.restored_target(state.ps_by_id, versions.previous)
        state.versions = ps_manager.begin(versions, Cause.ROLLBACK, target)
    elif versions.change is not None and versions.change.cause is Cause.PLAN:
        state.versions = ps_manager.cancel(versions)


_EFFECTS: Mapping[Effect, Callable[[JobState, PlanRun, float], None]] = {
    Effect.ASK_CHECKPOINT: _ask_checkpoint,
    Effect.START_CHANGE: _start_change,
    Effect.APPLY_COUNTS: _apply_counts,
    Effect.DRAIN: _drain,
    Effect.ACTIVATE: _activate,
    Effect.UNDO: _undo,
}
