"""Connects the state machine of a rollout with the rest of the state: what the plan observes, and how its
effects are carried out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from edl_workflows.core.jobs.scale_plan.model import NodeResource, PodMeta, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.state import checkpoints
from edl_workflows.services.master.state.autoscale import autoscale_steps
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import replicas
from edl_workflows.services.master.state.nodes.registry import JobNode, NodeStatus
from edl_workflows.services.master.state.nodes.relaunch import ROLLBACK
from edl_workflows.services.master.state.rollouts import rollout_checks
from edl_workflows.services.master.state.rollouts.rollout import (
    WAITING,
    ObservedJob,
    Rollout,
    RolloutEffect,
    advance_rollout,
    changes_members,
    end_with_job,
    role_request,
    start_rollout,
)
from edl_workflows.services.master.state.rollouts.rollout_checks import describe_wait
from edl_workflows.services.master.state.settings import ELASTIC_TYPES, merge_resources
from edl_workflows.services.master.state.versions import cluster_versions, rendezvous, version_steps
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause

REMEMBERED_PLANS = 100
"""Number of finished plans whose uids are remembered, because the informer's cache may still show them as
unfinished.
"""


def advance_plan(state: JobState, now: float) -> None:
    """Start the next plan, or move the present plan by one phase."""
    if state.plan is not None and state.plan.phase.final and _is_recorded(state, state.plan):
        _close_plan(state, state.plan)
    elif state.plan is not None and state.plan.phase is ScalePlanPhase.PENDING:
        _reread_plan(state, state.plan)
    if state.plan is None:
        _start_next_plan(state, now)
    if state.plan is None or state.plan.phase.final:
        return
    if state.plan.phase is ScalePlanPhase.PENDING:
        state.plan = replace(state.plan, spec=_ranks_as_pods(state, state.plan.spec))
    state.plan, effects = advance_rollout(state.plan, _observe_job(state, state.plan), now)
    for effect in effects:
        _EFFECTS[effect](state, state.plan, now)


def finish_plan(state: JobState, now: float) -> None:
    """End the plan because the job is over."""
    if state.plan is not None and state.outcome is not None:
        state.plan = end_with_job(state.plan, now, succeeded=state.outcome.succeeded)


def _is_recorded(state: JobState, plan: Rollout) -> bool:
    """Whether the plan's end is in its status, or the plan was deleted."""
    return state.volatile.recorded_serial >= plan.serial or _is_deleted(state, plan)


def _close_plan(state: JobState, plan: Rollout) -> None:
    state.finished_plans = (*state.finished_plans, plan.uid)[-REMEMBERED_PLANS:]
    state.plan = None


def _reread_plan(state: JobState, plan: Rollout) -> None:
    """Follow the plan in the cluster: until it begins, it can be edited, or the controller can end it."""
    seen = next((seen for seen in state.volatile.plans_seen or () if seen.uid == plan.uid), None)
    if seen is not None and seen.over:
        _close_plan(state, plan)
    elif seen is not None:
        state.plan = replace(plan, spec=seen.spec, generation=seen.generation)


def _is_deleted(state: JobState, plan: Rollout) -> bool:
    seen = state.volatile.plans_seen
    return seen is not None and all(observed.uid != plan.uid for observed in seen)


def _start_next_plan(state: JobState, now: float) -> None:
    for seen in state.volatile.plans_seen or ():
        if not seen.over and seen.uid not in state.finished_plans:
            state.plan = start_rollout(seen.uid, seen.name, seen.spec, now, seen.generation)
            state.volatile.recorded_serial = 0
            return


def queued_plans(state: JobState, now: float) -> Sequence[Rollout]:
    """Plans that wait for the present plan to end, each with the status to show until it is started."""
    present = state.plan
    if present is None:
        return ()
    message = f"waits for ScalePlan {present.name}, which goes before"
    return [
        replace(
            start_rollout(seen.uid, seen.name, seen.spec, now, seen.generation),
            reason=WAITING,
            message=message,
        )
        for seen in state.volatile.plans_seen or ()
        if not seen.over and seen.uid not in (present.uid, *state.finished_plans)
    ]


def _ranks_as_pods(state: JobState, spec: ScalePlanSpec) -> ScalePlanSpec:
    """Replace `migrateRanks` by the pods that have these ranks now; `rollout_checks` reports ranks without a
    pod.
    """
    pods, left = [], {}
    for rank, size in sorted(spec.migrate_ranks.items()):
        node = state.nodes.at_rank(names.PS_TYPE, rank)
        if node is None:
            left[rank] = size
        else:
            pods.append(
                PodMeta(name=state.settings.pod_name(node.type, node.id), rank_index=rank, resource=size)
            )
    return spec.model_copy(update={"migrate_pods": [*spec.migrate_pods, *pods], "migrate_ranks": left})


def _observe_job(state: JobState, rollout: Rollout) -> ObservedJob:
    versions, spec = state.versions, rollout.spec
    change = versions.change
    role = state.settings.member_type
    members = versions.active.members if versions.active else ()
    request = role_request(spec, role)
    count = request.replicas if request else None
    saved = state.checkpoints.result(rollout.request)
    return ObservedJob(
        recorded=state.volatile.recorded_serial >= rollout.serial,
        cancelled=_is_deleted(state, rollout),
        invalid=_find_problem(state, rollout),
        changes_members=changes_members(
            spec, role, len(members), frozenset(state.settings.pod_name(role, node) for node in members)
        ),
        surplus_members=state.settings.collective and count is not None and len(members) > count,
        settled=versions.settled,
        waits_for="" if versions.settled else describe_wait(state),
        save=saved.ref if isinstance(saved, checkpoints.SavedCheckpoint) else saved,
        evaluation=saved.evaluation if isinstance(saved, checkpoints.SavedCheckpoint) else None,
        chief_ended=state.chief is not None and state.chief.status is NodeStatus.SUCCEEDED,
        broken=_why_broken(state, rollout),
        prepared=_is_prepared(state),
        drained=version_steps.is_drained(state),
        next_number=change.number if change else 0,
        trained=versions.trained,
        step_time=state.steps.time,
        first_step=state.steps.first,
        first_step_time=state.steps.first_time,
        scaled=_is_scaled(state),
    )


def _find_problem(state: JobState, rollout: Rollout) -> str:
    if forbidden := autoscale_steps.why_forbidden(state, rollout):
        return forbidden
    return (
        rollout_checks.find_problem(rollout.spec, _rollout_context(state)) if state.versions.settled else ""
    )


def _rollout_context(state: JobState) -> rollout_checks.RolloutContext:
    live = {state.settings.pod_name(node.type, node.id): node for node in state.nodes if node.live}
    settings = replace(state.settings, rendezvous=state.rendezvous)
    return rollout_checks.RolloutContext(
        settings, state.counts, state.sizes, live, state.max_workers, state.servers
    )


def _why_broken(state: JobState, rollout: Rollout) -> str:
    versions = state.versions
    change = versions.change
    if rollout.activated and versions.trained >= rollout.number:
        return ""
    if rollout.broken:
        return rollout.broken
    if rollout.activated:
        if state.starts_from_damaged:
            return state.checkpoints.damaged[-1].error
        lost = state.gone_members
    elif change is not None and change.cause is ChangeCause.PLAN:
        lost = [*state.gone_members, *state.lost_members(change.target)]
    else:
        return ""
    members, role = state.members_by_id, state.settings.member_type
    kind = "worker" if state.settings.collective else "parameter server"
    return "; ".join(
        f"{kind} {role}-{node_id} was lost"
        + (f" ({members[node_id].exit_reason})" if node_id in members else "")
        for node_id in dict.fromkeys(lost)
    )


def _is_prepared(state: JobState) -> bool:
    change, role = state.versions.change, state.settings.member_type
    if change is None or not cluster_versions.members_ready(state.versions, role):
        return False
    # In a collective job, members of the old group that are not in the next one prepare nothing.
    joining = [] if state.settings.collective else state.trainers
    return _is_scaled(state, besides=role) and all(str(node) in change.ready for node in joining)


def _is_scaled(state: JobState, besides: str = "") -> bool:
    return all(
        replicas.has_requested_nodes(state.nodes, role, state.counts.get(role, 0))
        for role in ELASTIC_TYPES
        if role in state.settings.roles and role != besides
    )


def _ask_checkpoint(state: JobState, rollout: Rollout, _now: float) -> None:
    state.checkpoints = checkpoints.request_save(state.checkpoints, rollout.request)


def _start_change(state: JobState, rollout: Rollout, now: float) -> None:
    active = state.versions.active
    assert active is not None
    role = state.settings.member_type
    request = role_request(rollout.spec, role)
    size = state.sizes.get(role, NodeResource())
    resize = replicas.MemberResize(
        count=request.replicas if request else None,
        migrate={
            node.id: merge_resources(to, node.resource)
            for node, to in _nodes_to_migrate(state, rollout)
            if node.type == role
        },
        resource=merge_resources(request.resource, size) if request else size,
    )
    if state.settings.collective:
        target, added = rendezvous.resized_group(state, resize, now)
    else:
        target, added = replicas.resize_servers(state.nodes, active.members, resize, now)
    state.nodes.add(*added)
    in_place = not set(state.holders).isdisjoint(active.going_on(target))
    state.versions = cluster_versions.begin_change(
        state.versions, ChangeCause.PLAN, target, in_place=in_place
    )


def _apply_counts(state: JobState, rollout: Rollout, now: float) -> None:
    # A plan may apply its counts twice (see `rollout._scaling`); what was before the first time counts.
    old_counts, old_sizes = rollout.old_counts or dict(state.counts), rollout.old_sizes or dict(state.sizes)
    # The members' count changes when the version is activated. A plan without such a switch may still give
    # it.
    later = state.settings.member_type if rollout.phase is ScalePlanPhase.MIGRATING else names.PS_TYPE
    for role, request in rollout.spec.replica_resource_specs.items():
        if request.replicas is not None and role != later:
            state.counts[role] = request.replicas
        _apply_size(state, role, rollout)
    workers = [
        (node, merge_resources(to, node.resource))
        for node, to in _nodes_to_migrate(state, rollout)
        if not _is_member(state, node)
    ]
    old_nodes = {f"{node.type}:{node.rank}": node.resource for node, _ in workers} | rollout.old_nodes
    state.plan = replace(rollout, old_counts=old_counts, old_sizes=old_sizes, old_nodes=old_nodes)
    _replace_workers(state, workers, now)


def _replace_workers(state: JobState, sizes: Sequence[tuple[JobNode, NodeResource]], now: float) -> None:
    for node, size in sizes:
        state.shards.release_node(node.ref)
        state.nodes.release(node, now)
        state.nodes.replace_by(node, state.nodes.new_successor(node, now, size, node.relaunches))


def _is_member(state: JobState, node: JobNode) -> bool:
    active = state.versions.active
    members = active.members if active is not None else ()
    return node.type == names.PS_TYPE or (node.type == state.settings.member_type and node.id in members)


def _apply_size(state: JobState, role: str, rollout: Rollout) -> None:
    request = role_request(rollout.spec, role)
    if request is not None:
        state.sizes[role] = merge_resources(request.resource, state.sizes.get(role, NodeResource()))


def _nodes_to_migrate(state: JobState, rollout: Rollout) -> list[tuple[JobNode, NodeResource]]:
    """The nodes to migrate. If a node was replaced in the meantime, its replacement is migrated."""
    migrations = []
    for pod in rollout.spec.migrate_pods:
        node = state.nodes.by_pod(state.settings.name, pod.name)
        while node is not None and node.replaced_by >= 0:
            node = state.nodes.find(node.type, node.replaced_by)
        if node is not None:
            migrations.append((node, pod.resource))
    return migrations


def _begin_drain(state: JobState, _rollout: Rollout, _now: float) -> None:
    state.versions = cluster_versions.begin_drain(state.versions)


def _activate_version(state: JobState, rollout: Rollout, _now: float) -> None:
    assert rollout.checkpoint is not None
    switch = replace(rollout, phase=ScalePlanPhase.RESTARTING).request
    saved = state.checkpoints.result(switch)
    assert isinstance(saved, checkpoints.SavedCheckpoint)
    version_steps.activate_version(state, saved)
    state.left_at = saved
    role = state.settings.member_type
    request = role_request(rollout.spec, role)
    if not state.settings.collective:
        state.counts[names.PS_TYPE] = len(state.versions.active.members) if state.versions.active else 0
    elif request is not None and request.replicas is not None:
        # The wanted number, not that of the members: a group may be smaller than wanted for a while.
        state.counts[role] = request.replicas


def _undo_plan(state: JobState, rollout: Rollout, now: float) -> None:
    versions = state.versions
    state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
    if rollout.old_counts:
        state.counts, state.sizes = dict(rollout.old_counts), dict(rollout.old_sizes)
    places = ((place.partition(":"), size) for place, size in rollout.old_nodes.items())
    now_there = [(state.nodes.at_rank(role, int(rank)), size) for (role, _, rank), size in places]
    _replace_workers(
        state, [(node, size) for node, size in now_there if node and node.live and node.resource != size], now
    )
    active = versions.active
    if rollout.number and active is not None and active.number == rollout.number:
        if state.settings.collective:  # the survivors continue
            state.versions = cluster_versions.begin_change(versions, ChangeCause.ROLLBACK, versions.previous)
        else:
            target = cluster_versions.restored_target(state.members_by_id, versions.previous)
            state.versions = cluster_versions.begin_return(versions, target)
        state.restarted(f"version {rollout.number}", ROLLBACK, rollout.message, now)
    elif versions.change is not None and versions.change.cause is ChangeCause.PLAN:
        state.versions = cluster_versions.cancel_change(versions)


_EFFECTS: Mapping[RolloutEffect, Callable[[JobState, Rollout, float], None]] = {
    RolloutEffect.ASK_CHECKPOINT: _ask_checkpoint,
    RolloutEffect.START_CHANGE: _start_change,
    RolloutEffect.APPLY_COUNTS: _apply_counts,
    RolloutEffect.DRAIN: _begin_drain,
    RolloutEffect.ACTIVATE: _activate_version,
    RolloutEffect.UNDO: _undo_plan,
}
