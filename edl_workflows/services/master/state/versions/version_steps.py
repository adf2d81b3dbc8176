"""Connects the cluster versions with the rest of the state: losses, recovery, activation and removal of
members.

In collective jobs, `rendezvous` handles losses and joins.
"""

from dataclasses import replace

from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.services.master.shards.snapshot import JobPosition
from edl_workflows.services.master.state import checkpoints
from edl_workflows.services.master.state.autoscale.autoscale_steps import job_with_oom
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import relaunch, replicas
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode
from edl_workflows.services.master.state.nodes.relaunch import HANG, RECOVERY, RESUME
from edl_workflows.services.master.state.stored_state import StepProgress
from edl_workflows.services.master.state.versions import cluster_versions
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause


def replace_lost_node(state: JobState, node: JobNode, now: float) -> None:
    """Replace a lost node, or give it up; once."""
    if node.replaced_by >= 0 or node.given_up:
        return
    job = job_with_oom(state, node, now) if node.exit_reason is ExitReason.OOM else None
    if job is not None:
        state.volatile.statistics.ooms += [ill for ill in job.nodes if ill.oom]
    decision = relaunch.decide_replacement(node, state.settings, job)
    suspended = str(node) in state.volatile.taken_by_suspension
    if not suspended:
        cause = relaunch.describe_cause(node.message, node.exit_reason or "", node.exit_code)
        cause = cause or (f"exit code {node.exit_code}" if node.exit_code else "")
        replaced = decision.resource is not None
        state.restarted(str(node), node.exit_reason or "", cause, now, replaced=replaced)
    if decision.resource is None:
        state.nodes.change(node, given_up=decision.refused)
        return
    fresh = state.nodes.new_successor(node, now, decision.resource, decision.relaunches)
    if decision.resource != node.resource:
        reason = f"{node} ran out of memory; {fresh} gets {decision.resource.memory}"
        fresh = replace(fresh, why=reason)
    state.nodes.replace_by(node, fresh if suspended else relaunch.pace_successor(node, fresh, now))


def advance_versions(state: JobState, now: float) -> None:
    """Advance the change of versions, or begin one after a loss. A plan activates its change itself."""
    _begin_change(state, now)
    change = state.versions.change
    if change is None:
        _release_unneeded(state, now)
        return
    call_back_finished(state, now)
    if change.cause is not ChangeCause.PLAN:
        members = state.members_by_id
        lost = [members[node_id] for node_id in state.lost_members(change.target) if node_id in members]
        for node in lost:
            replace_lost_node(state, node, now)
        members = state.members_by_id
        fresh = {node.id: successor for node in lost if (successor := members[node.id].replaced_by) >= 0}
        state.versions = cluster_versions.follow_replacements(state.versions, fresh)
    registered = frozenset(node.id for node in state.nodes.of(names.PS_TYPE) if node.registered)
    if state.checked:
        state.versions = cluster_versions.assign_number(state.versions, registered)
    state.versions = cluster_versions.note_survivors_ready(state.versions, names.PS_TYPE)
    ready = cluster_versions.members_ready(state.versions, names.PS_TYPE)
    if (
        change.cause is not ChangeCause.PLAN
        and ready
        and (state.settings.has_ps or (state.chief is not None and state.chief.registered))
    ):
        _activate_restored(state)
    _release_unneeded(state, now)


def _activate_restored(state: JobState) -> None:
    """Activate a version that continues from the newest checkpoint, or with the variables of the previous
    parameter servers. These are ready at once, so the version waits for its chief."""
    change = state.versions.change
    if change is None or not change.processes:
        activate_version(state, state.checkpoints.newest)
    elif str(state.chief) in change.ready:
        activate_version(state, state.left_at)


def _begin_change(state: JobState, now: float) -> None:
    versions = state.versions
    if versions.change is not None:
        return
    if versions.active is None:
        count = state.counts.get(names.PS_TYPE, 0) if state.settings.has_ps else 0
        size = state.sizes.get(names.PS_TYPE, NodeResource())
        target, added = replicas.resize_servers(
            state.nodes, (), replicas.MemberResize(count=count, resource=size), now
        )
        state.nodes.add(*added)
        state.versions = cluster_versions.begin_change(versions, ChangeCause.INITIAL, target)
    elif state.lost_members(versions.active.members) or _chief_is_another(state) or state.starts_from_damaged:
        recover_version(state, now)


def restart_processes(state: JobState, now: float) -> None:
    """Restart all training processes on their nodes from the newest checkpoint, because training hangs."""
    state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
    recover_version(state, now, HANG)


def recover_version(state: JobState, now: float, cause: str = RECOVERY) -> None:
    """Begin a version that starts from the newest checkpoint, with the members of the active version or
    their replacements.
    """
    assert state.versions.active is not None
    target = cluster_versions.restored_target(state.members_by_id, state.versions.active.members)
    state.versions = cluster_versions.begin_change(state.versions, ChangeCause.RECOVERY, target)
    return_to_checkpoint(state, now, cause)


def return_to_checkpoint(state: JobState, now: float, cause: str = RECOVERY) -> None:
    """Record that the active version can't continue: progress after the newest checkpoint is lost."""
    saved, active = state.checkpoints.newest, state.versions.active
    step = saved.step if saved else 0
    if active is not None:
        lost = {f"{state.settings.member_type}-{member}" for member in state.lost_members(active.members)}
        if cause == RECOVERY and lost and lost <= state.volatile.taken_by_suspension:
            cause = RESUME
        state.restarted(
            f"version {active.number}", cause, f"back from step {state.steps.step} to {step}", now
        )
    state.steps = StepProgress(step=step, records=state.steps.records)


def is_drained(state: JobState) -> bool:
    """Whether the processes of the active version have stopped between two steps.

    With parameter servers, the chief need not have stopped: it saves the switch checkpoint. In a collective
    job it must have stopped too, or it would save in the middle of a step.
    """
    change, chief = state.versions.change, state.chief
    stopping = [node for node in state.trainers if state.settings.collective or node != chief]
    if change is None or not change.draining:
        return False
    return frozenset(change.drained).issuperset(map(str, stopping))


def call_back_finished(state: JobState, now: float) -> None:
    """If training goes back to a checkpoint, replaces nodes that have succeeded, above all the chief.

    This happens only while another node still works. It also applies to a node that succeeded before it
    learned of the loss.
    """
    if not state.goes_back:
        return
    trainers = [*state.nodes.of(names.CHIEF_TYPE), *state.nodes.of(names.WORKER_TYPE)]
    if not any(node.live for node in trainers):
        return
    for node in trainers:
        if node.completed and not node.released:
            successor = state.nodes.new_successor(node, now, node.resource, node.relaunches)
            state.nodes.replace_by(node, successor)


def _chief_is_another(state: JobState) -> bool:
    """Whether the chief was replaced. In a job without parameter servers the model is lost with its chief."""
    active, chief = state.versions.active, state.chief
    if state.settings.has_ps or active is None or chief is None:
        return False
    return chief.live and chief.id != active.chief


def activate_version(state: JobState, saved: checkpoints.SavedCheckpoint | None) -> None:
    """Make the next version active, and return model and data to the checkpoint; in place, both stay as
    they are. If the previous parameter servers go on, only the data returns: they still hold the model of the
    checkpoint."""
    if state.versions.change is not None and state.versions.change.in_place:
        state.versions = cluster_versions.activate_next(state.versions, None, replica_size=state.replica_size)
        state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
        state.steps = replace(state.steps, first=0, first_time=0.0)
        _begin_anew(state)
        return
    first = state.versions.active is None
    chief = -1 if state.settings.member_type or state.chief is None else state.chief.id
    returns = state.versions.change is not None and bool(state.versions.change.processes)
    ref = saved.ref if saved and not returns else None
    state.versions = cluster_versions.activate_next(state.versions, ref, chief, state.replica_size)
    if not first:
        state.shards.rollback(saved.position if saved else JobPosition())
    state.checkpoints = checkpoints.abandon_saves(state.checkpoints)
    state.steps = StepProgress(step=saved.step if saved else 0, records=state.steps.records)
    _begin_anew(state)


def _begin_anew(state: JobState) -> None:
    state.volatile.statistics.restart()
    state.volatile.newcomers_wait_until = 0.0
    for node in state.nodes:
        if node.waiting:
            state.nodes.change(node, waiting=False)


def start_from(state: JobState, ref: CheckpointRef, position: JobPosition | None, now: float) -> None:
    """Make the active version start from a checkpoint that its chief found, and move the data to the
    checkpoint's position.
    """
    state.versions = cluster_versions.set_restore(state.versions, ref)
    state.shards.resume(ref.uri, position)
    state.checkpoints = checkpoints.adopt_checkpoint(state.checkpoints, ref, state.shards.position(), now)
    state.steps = StepProgress(step=ref.step, records=state.steps.records)


def _release_unneeded(state: JobState, now: float) -> None:
    kept = state.versions.kept
    for node in state.nodes.live(names.PS_TYPE):
        if node.id not in kept:
            state.nodes.release(node, now)
