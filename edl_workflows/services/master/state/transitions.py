"""Derives all consequences from the whole state; level-triggered. A second call at the same time changes
nothing.

The order matters: first the nodes that are alive, then the plan (which may have to be rolled back), then
versions and nodes, then the end of the job and, if it has not ended, requests for pods.
"""

from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.datasets import LeaseState
from edl_workflows.services.master.state import goodput_steps, job_result, settings
from edl_workflows.services.master.state.autoscale import autoscale_steps
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import (
    fault_steps,
    leaving_steps,
    pod_requests,
    replicas,
    standstill,
)
from edl_workflows.services.master.state.nodes.fault_steps import end_node
from edl_workflows.services.master.state.nodes.loss_batch import POD_SECONDS
from edl_workflows.services.master.state.nodes.registry import ExitReason, NodeStatus, PodState
from edl_workflows.services.master.state.rollouts import rollout_steps
from edl_workflows.services.master.state.versions import rendezvous, version_steps
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause


def settle_job(state: JobState, now: float) -> None:
    """Advance the job as far as possible now."""
    fault_steps.expire_leases(state, now)
    goodput_steps.note_end_of_suspension(state)
    goodput_steps.count_time(state, now)
    if state.outcome is None:
        _settle_open_job(state, now)
        goodput_steps.count_time(state, now)


def _settle_open_job(state: JobState, now: float) -> None:
    leaving_steps.settle_departure(state, now)
    if not leaving_steps.whole_job_leaves(state):  # removed on purpose, no node is replaced or given up
        _find_silent(state, now)
        fault_steps.end_lost_nodes(state, now)
        _find_unprepared(state, now)
        fault_steps.check_nodes(state, now)
        rollout_steps.advance_plan(state, now)
        autoscale_steps.settle_autoscaling(state, now)
        _settle_elastic(state, now)
        standstill.fail_silent_members(state, now)
        standstill.find_hang(state, now)
        if state.settings.collective:
            rendezvous.advance_group(state, now)
        else:
            version_steps.advance_versions(state, now)
        _note_done(state, now)
        data, group = _data_state(state, now), _group_state(state, now)
        pending = {node: now - since for node, since in state.volatile.pending_since.items()}
        state.outcome = job_result.decide_result(state.nodes, state.settings, data, pending, group)
        if state.outcome is None and state.watches_pods:
            _request_pods(state, now)
    else:
        state.volatile.pending_since = {}
        state.volatile.prepared_since = (0, 0.0)
        state.volatile.missing_since = None
        state.volatile.done_since = None
        state.volatile.moved = None
    _forget_ended(state)
    if state.outcome is not None:
        rollout_steps.finish_plan(state, now)


def _find_silent(state: JobState, now: float) -> None:
    waiting = {}
    for node in state.nodes:
        if node.status is NodeStatus.RUNNING:
            silent = now - state.volatile.last_seen.setdefault(str(node), now)
            if silent > state.settings.timeouts.heartbeat:
                reason = f"silent for {silent:.0f} s"
                end_node(state, node, NodeStatus.FAILED, ExitReason.NO_HEARTBEAT, message=reason)
        elif not node.status.final:
            since = now if node.not_before > now else state.volatile.pending_since.get(str(node), now)
            waiting[str(node)] = since
            limit = state.settings.roles[node.type].restart_timeout
            if node.relaunches and 0 < limit < now - since:
                reason = f"pending for {limit} s"
                end_node(state, node, NodeStatus.FAILED, ExitReason.PENDING_TIMEOUT, message=reason)
    state.volatile.pending_since = waiting


def _find_unprepared(state: JobState, now: float) -> None:
    """Fail members of the next version whose agents live but whose processes hang.

    A plan gives up such a version by itself; otherwise nothing else would end the wait.
    """
    change = state.versions.change
    number = change.number if change is not None and change.cause is not ChangeCause.PLAN else 0
    if state.self_formed is not None:
        number = 0  # its processes never report that they are ready
    if number != state.volatile.prepared_since[0]:
        state.volatile.prepared_since = (number, now)
    waited, limit = now - state.volatile.prepared_since[1], state.settings.timeouts.prepare
    if change is None or not number or not 0 < limit < waited:
        return
    training: tuple[int, ...] = ()
    if change.cause is ChangeCause.MEMBERSHIP:
        # Members that train are sound, whatever their second process does.
        training = state.versions.active.members if state.versions.active else ()
        rendezvous.give_up_newcomers(state, now + limit)
    for node in state.nodes.live(state.settings.member_type):
        if node.id in change.target and node.id not in training and str(node) not in change.ready:
            reason = f"its process was not ready for version {number} after {waited:.0f} s"
            end_node(state, node, NodeStatus.FAILED, ExitReason.PREPARE_TIMEOUT, message=reason)


def _settle_elastic(state: JobState, now: float) -> None:
    for node_type in settings.ELASTIC_TYPES:
        if node_type not in state.settings.roles:
            continue
        for node in state.nodes.of(node_type):
            if node.lost and not node.released:
                version_steps.replace_lost_node(state, node, now)
        size = state.sizes.get(node_type, NodeResource())
        count = state.counts.get(node_type, 0)
        versions = state.versions if node_type == state.settings.member_type else None
        added, released = replicas.scale_role(
            state.nodes, state.settings, node_type, count, size, now, versions
        )
        state.nodes.add(*added)
        for node in released:
            state.nodes.release(node, now)
            state.shards.release_node(node.ref)


def _request_pods(state: JobState, now: float) -> None:
    grace = state.settings.timeouts.release
    lost = pod_requests.count_unreplaced(state.nodes)
    losses = state.volatile.lost_nodes = state.volatile.lost_nodes.note_count(lost, now)
    more_losses = now < losses.due(state.size, POD_SECONDS)
    request = pod_requests.next_request(state.pod_plans, state.nodes, grace, now, more_losses=more_losses)
    if request is None:
        return
    state.pod_plans = pod_requests.open_request(state.pod_plans, request)
    for node in state.nodes.find_all(request.create):
        state.nodes.change(node, asked=True)
    for node in state.nodes.find_all(request.remove):
        state.nodes.change(node, removal_asked=True)


def _forget_ended(state: JobState) -> None:
    """Forget ended nodes that nothing depends on any more; their ids are not used again."""
    kept = state.versions.kept
    for node in state.nodes:
        if node.type == state.settings.member_type and node.id in kept:
            continue
        over = node.status.final or not node.registered
        if node.released:
            if (node.asked or node.pod) and state.watches_pods:
                over = node.pod is PodState.GONE
        else:
            exists = (PodState.THERE, PodState.OUTLIVED)
            pod_exists = node.pod in exists or (node.removal_asked and node.pod is not PodState.GONE)
            over = node.status.final and node.replaced_by >= 0 and not pod_exists
        if over:
            state.nodes.forget(node)


def _note_done(state: JobState, now: float) -> None:
    """Record when the essential work was done.

    A collective job has done it when rank 0 of its training group has delivered the final model; another job,
    when all data is processed and all critical nodes that train have succeeded.
    """
    if state.settings.collective:
        # A program that does not use the library is done when all its processes have exited: nothing shows
        # whether one of them hangs.
        done = rendezvous.chief_succeeded(state) and state.self_formed is None
    else:
        workers = [*state.nodes.of(names.CHIEF_TYPE), *state.nodes.of(names.WORKER_TYPE)]
        critical = [n for n in workers if n.replaced_by < 0 and state.settings.critical(n.type, n.rank)]
        ended = bool(critical) and all(node.status is NodeStatus.SUCCEEDED for node in critical)
        done = state.shards.finished and ended
    if not done:
        state.volatile.done_since = None
    elif state.volatile.done_since is None:
        state.volatile.done_since = now


def _data_state(state: JobState, now: float) -> job_result.DataState:
    unfinished = [
        progress.name
        for progress in state.shards.all_progress()
        if progress.state is LeaseState.OK and (progress.num_epochs > 0)
    ]
    waited = 0.0 if state.volatile.done_since is None else now - state.volatile.done_since
    return job_result.DataState(
        tuple(unfinished),
        state.shards.failure,
        state.checkpoints.lost,
        state.hangs.failure,
        fault_steps.too_many_failed_saves(state),
        over=state.volatile.done_since is not None and waited > state.settings.timeouts.finish,
    )


def _group_state(state: JobState, now: float) -> job_result.GroupState | None:
    if not state.settings.collective:
        return None
    world, since = state.world, state.volatile.missing_since
    missing = 0.0 if since is None else now - since
    members = world.members if world else ()
    return job_result.GroupState(members, len(state.joined), missing, state.rendezvous, state.goes_back)
