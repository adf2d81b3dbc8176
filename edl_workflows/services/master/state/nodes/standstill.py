"""Finds and removes what blocks training: members for which the others wait, and hangs. Connects `absence`
and `hang` with the rest of the state.
"""

from collections.abc import Iterable
from dataclasses import replace

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import PresenceReport, StackReport
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.messages import find_node
from edl_workflows.services.master.state.nodes import hang, leaving_steps
from edl_workflows.services.master.state.nodes.absence import Absence, MemberSign, find_absence
from edl_workflows.services.master.state.nodes.fault_steps import end_node
from edl_workflows.services.master.state.nodes.hang_report import HangReport, NodeStacks
from edl_workflows.services.master.state.nodes.registry import ExitReason, NodeStatus
from edl_workflows.services.master.state.versions import version_steps
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause

LATE_SECONDS = 10.0
"""Seconds for which the others must have waited for a member before the status warns about it."""


def note_sign(state: JobState, message: StepReport | PresenceReport, now: float) -> None:
    """Record that a process is alive, and whether it waits for other members.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = find_node(state, message.node)
    if node is None or not node.live:
        return
    waits = message.waiting if isinstance(message, PresenceReport) else 0.0
    since = now - waits if waits else 0.0
    state.volatile.signs[str(node)] = MemberSign(now, message.version, message.step, since)


def fail_silent_members(state: JobState, now: float) -> None:
    """Fail members whose processes are silent while others wait for them; the others can then continue."""
    drained = state.versions.change.drained if state.versions.change is not None else ()
    if not drained:
        state.volatile.drained_since = 0.0
    elif not state.volatile.drained_since:
        state.volatile.drained_since = now
    absence, limit = _absence(state, now), state.settings.fault_tolerance.silent_member_seconds
    if absence is None or not limit:
        return
    silent = {node: seconds for node, seconds in absence.silent.items() if seconds >= limit}
    for node, seconds in silent.items():
        reason = (
            f"silent for {seconds:.0f} s: its process is stopped, cut off from the network, or short of CPU"
        )
        _fail_member(state, absence, node, reason)
    if silent:
        state.volatile.statistics.pauses.absences.add(now - absence.since)


def record_stacks(state: JobState, message: StackReport) -> None:
    """Record the stacks of a training process, if they belong to the present request.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node, report = find_node(state, message.node), state.volatile.hang_report
    if node is None or report is None or message.dump != report.dump:
        return
    stacks = NodeStacks(message.stacks, tuple(message.recordings))
    state.volatile.hang_report = replace(report, stacks={**report.stacks, str(node): stacks})


def late_members(state: JobState, now: float) -> Absence | None:
    """The absent members, if the others have waited for them for `LATE_SECONDS`."""
    absence = _absence(state, now)
    return absence if absence is not None and now - absence.since >= LATE_SECONDS else None


def find_hang(state: JobState, now: float) -> None:
    """Check whether training progresses, and act if it does not."""
    fault_tolerance = state.settings.fault_tolerance
    timeout, first_step = fault_tolerance.hang_timeout_seconds, fault_tolerance.first_step_timeout_seconds
    if timeout and not _has_stepped(state):
        timeout = first_step and max(timeout, first_step)
    rules = hang.HangRules(timeout, fault_tolerance.hang_action, fault_tolerance.max_restarts)
    seen = hang.watch_progress(state.hangs, state.volatile.moved, _progress_marker(state), rules, now)
    state.hangs, state.volatile.moved, step = seen
    if step is hang.HangStep.FOUND:
        state.volatile.hang_report = HangReport(state.hangs.dump, now)
        if state.volatile.moved is not None:
            state.volatile.statistics.pauses.hangs.add(now - state.volatile.moved.at)
    if step is hang.HangStep.RESTART:
        _restart_hanging(state, now)


def _has_stepped(state: JobState) -> bool:
    """Whether the active version has made a step, or the program trains without reporting any."""
    active = state.versions.active
    if active is None or state.versions.trained >= active.number:
        return True
    return not state.versions.trained and state.shards.records_answered > 0


def _restart_hanging(state: JobState, now: float) -> None:
    """Fail the members for which others wait, if one of the others holds the model. Otherwise restart all
    processes.
    """
    absence = _absence(state, now)
    holders = {f"{names.WORKER_TYPE}-{node}" for node in state.holders}
    if absence is None or not holders.intersection(absence.waiting):
        version_steps.restart_processes(state, now)
        return
    for node in absence.silent:
        _fail_member(state, absence, node, f"absent for {now - absence.since:.0f} s, and training hangs")
    state.volatile.statistics.pauses.absences.add(now - absence.since)


def _fail_member(state: JobState, absence: Absence, name: str, reason: str) -> None:
    node = state.members_by_id[int(name.rpartition("-")[2])]
    waiting = _join_names(absence.waiting)
    message = f"{reason}; {waiting} waited for it in step {absence.step}"
    end_node(state, node, NodeStatus.FAILED, ExitReason.ABSENT, message=message)


def _absence(state: JobState, now: float) -> Absence | None:
    active, change = state.versions.active, state.versions.change
    if active is None or not state.settings.collective or state.volatile.listening_since is None:
        return None
    signs = dict(state.volatile.signs)
    for node in change.drained if change is not None else ():
        if node in signs and not signs[node].waits_since:
            signs[node] = replace(signs[node], waits_since=state.volatile.drained_since)
    members = [str(node) for node in state.trainers if node.id not in active.ended]
    return find_absence(members, active.number, signs, state.volatile.listening_since, now)


def _join_names(nodes: Iterable[str], most: int = 3) -> str:
    named = sorted(nodes)
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


def _progress_marker(state: JobState) -> tuple[object, ...] | None:
    """A value that changes when training progresses; None while no progress is expected, or if the program
    never reported any.

    A plan has its own time-outs, so it is not watched. The admission of newcomers has none, so it is watched:
    processes that never stop for it count as hanging.
    """
    active, change, newest = state.versions.active, state.versions.change, state.checkpoints.newest
    changing = change is not None and change.cause is not ChangeCause.MEMBERSHIP
    if active is None or changing or not state.trainers or leaving_steps.is_pausing(state):
        return None
    if not (state.versions.trained or active.members):
        return None
    records = sum(progress.records_done for progress in state.shards.all_progress())
    ended = sum(node.status.final for node in state.nodes)
    progress = (state.steps.step, records, newest.uri if newest else "", ended)
    return active.number, progress, (change.number, change.ready, change.drained) if change else None
