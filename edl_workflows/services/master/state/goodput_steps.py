"""Derives from the job's state what its time is spent on now, for the account in `goodput`."""

from collections.abc import Iterable
from dataclasses import replace

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import ProcessReport
from edl_workflows.services.master.state import goodput
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.registry import JobNode, NodeStatus
from edl_workflows.services.master.state.versions import cluster_versions, version_steps
from edl_workflows.services.master.state.versions.cluster_versions import ClusterVersion, VersionChange


def note_end_of_suspension(state: JobState) -> None:
    """When a suspension ends, remembers the nodes that it removed, so that they don't count as failures.

    Must be called before `count_time`, which clears the suspension.
    """
    if state.goodput.suspended and not state.settings.suspend:
        state.volatile.taken_by_suspension = {
            str(node) for node in state.nodes if node.replaced_by < 0 and not node.given_up
        }


def count_time(state: JobState, now: float) -> None:
    """Count the job's time. Must be called before the reaction to a loss, which hides the lost steps, and
    again after it, to see what comes next.
    """
    active = state.versions.active
    seen = goodput.TrainingMoment(
        version=active.number if active else 0,
        step=state.steps.step,
        stepped=state.steps.first_time > 0,
        cause=present_cause(state),
        saved=tuple(saved.step for saved in state.checkpoints.saved),
        connected=state.connected,
        over=state.outcome is not None,
        worked=_has_worked(state),
        created=state.settings.created,
    )
    before = state.goodput
    state.goodput, state.volatile.moments = goodput.count_time(before, state.volatile.moments, seen, now)
    if state.goodput is not before:
        state.volatile.statistics.pauses.note_times(before, state.goodput, now)


def note_prepared(state: JobState, node: JobNode, version: int) -> None:
    """Record that the chief's process is prepared: the time after that no longer counts as import."""
    if node == state.chief and version > state.goodput.ready:
        state.goodput = replace(state.goodput, ready=version)


def count_save(state: JobState, message: ProcessReport, now: float) -> None:
    """Count the time for which a training process of the active version has just stopped to save a
    checkpoint, unless others trained meanwhile.
    """
    active = state.versions.active
    if not message.saving or active is None or message.version != active.number:
        return
    if state.settings.collective or [node.ref for node in state.trainers] == [message.node]:
        state.goodput = goodput.cut_save(state.goodput, message.saving, now)
        state.volatile.statistics.pauses.blocking.add(message.saving)


def present_cause(state: JobState) -> TimeCause:
    """What the job's time is spent on now. Training includes the pauses between two steps."""
    active, change = state.versions.active, state.versions.change
    if state.settings.suspend:
        return TimeCause.SUSPENDED
    if state.hangs.since:
        return TimeCause.HANG
    if active is None or (change is not None and not change.cause.orderly):
        return _cause_without_group(state, change)
    if state.versions.trained != active.number or not state.steps.first_time:
        return _cause_before_first_step(state, active)
    if not state.trainers:
        return _cause_of_start(_live_trainers(state))
    drained = version_steps.is_drained(state)
    if (drained and state.checkpoints.request) or any(ticket.last for ticket in state.checkpoints.pending):
        return TimeCause.SAVE
    return TimeCause.RENDEZVOUS if drained else TimeCause.TRAINING


def _cause_without_group(state: JobState, change: VersionChange | None) -> TimeCause:
    formed, member = state.self_formed, state.settings.member_type
    if formed is not None and formed.number and not state.lost_members(formed.members):
        return TimeCause.TRAINING
    if change is None or not change.number:
        return _cause_of_start(state.nodes.live(member) if member else _live_trainers(state))
    if change.in_place:
        return TimeCause.RENDEZVOUS
    if cluster_versions.members_ready(state.versions, member):
        return _cause_of_start(_live_trainers(state))
    return TimeCause.IMPORT


def _cause_before_first_step(state: JobState, active: ClusterVersion) -> TimeCause:
    if not state.trainers:
        return _cause_of_start(_live_trainers(state))
    if active.holders:
        newcomers = set(active.members).difference(active.holders)
        return TimeCause.RESTORE if newcomers else TimeCause.RENDEZVOUS
    if not state.connected or _consumes_without_steps(state):
        return TimeCause.TRAINING
    ready = state.settings.collective or state.goodput.ready >= active.number
    return TimeCause.RESTORE if ready and active.restore is not None else TimeCause.IMPORT


def _consumes_without_steps(state: JobState) -> bool:
    """Whether the program takes data, and has never reported a step."""
    return not state.versions.trained and any(p.records_done for p in state.shards.all_progress())


def _has_worked(state: JobState) -> bool:
    """Whether anything shows now that the program has trained. A program that does not use the library shows
    it only by ending with success.
    """
    if state.versions.trained or state.steps.first_time or state.shards.records_answered:
        return True
    trainers = (*state.nodes.of(names.CHIEF_TYPE), *state.nodes.of(names.WORKER_TYPE))
    succeeded = any(node.completed and not node.released for node in trainers)
    return succeeded or any(progress.records_done for progress in state.shards.all_progress())


def _cause_of_start(nodes: Iterable[JobNode]) -> TimeCause:
    running = [node for node in nodes if node.status is NodeStatus.RUNNING]
    if not running:
        return TimeCause.QUEUED
    return TimeCause.RENDEZVOUS if any(node.registered for node in running) else TimeCause.IMPORT


def _live_trainers(state: JobState) -> list[JobNode]:
    return [*state.nodes.live(names.CHIEF_TYPE), *state.nodes.live(names.WORKER_TYPE)]
