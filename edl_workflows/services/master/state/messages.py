"""Reports of nodes, entered into the state. Any message can arrive twice, late, or from a node that was
removed.

`transitions.settle_job` derives the consequences afterwards.
"""

import math
from dataclasses import replace

from edl_workflows.core.exceptions import ConflictError, NotFoundError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import (
    CLUSTER_LOST_EXIT_CODE,
    CheckReport,
    CrashReport,
    ExitReport,
    ExitVerdict,
    Heartbeat,
    NodeRef,
    ProcessReport,
    ProcessState,
    Registration,
    ServerChanges,
)
from edl_workflows.core.protocol.training import ResultReport, StepReport
from edl_workflows.services.master.state import goodput_steps
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import node_check, relaunch
from edl_workflows.services.master.state.nodes.fault_steps import end_node, forget_processes
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode, NodeStatus
from edl_workflows.services.master.state.stored_state import FunctionResult, StepProgress
from edl_workflows.services.master.state.versions import cluster_versions, rendezvous

_OWN_ENDS = (ExitReason.SUCCEEDED, ExitReason.KILLED, ExitReason.SIGNAL, ExitReason.OOM)
"""Ends of a process that do not follow from the loss of another member."""
STRICTNESS = {changes: number for number, changes in enumerate(ServerChanges)}


def find_node(state: JobState, ref: NodeRef) -> JobNode | None:
    """The node, or None if the job once had it and has forgotten it.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = state.nodes.find(ref.type, ref.id)
    if node is None and ref.id >= state.nodes.next_ids.get(ref.type, 0):
        raise NotFoundError(
            f"node {ref}: job {state.settings.name!r} has no such node; check NODE_TYPE and NODE_ID"
        )
    return node


def register_node(state: JobState, message: Registration, now: float) -> None:
    """Record that an agent has started.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: the node reports another rank than it has.
    """
    node = find_node(state, message.node)
    if node is None or node.status.final:
        return
    if message.rank != node.rank:
        raise ConflictError(
            f"{node} has rank {node.rank}, but reports {message.rank}: NODE_RANK is set by the controller"
        )
    restarted = node.incarnation not in ("", message.incarnation)
    if restarted and _holds_model(state, node):
        end_node(state, node, NodeStatus.FAILED, ExitReason.UNKNOWN, message="its container was restarted")
        return
    if restarted:
        forget_processes(state, node)
        state.volatile.departure = state.volatile.departure.without_node(str(node))
    joined = node.joined if node.incarnation == message.incarnation else now
    state.nodes.change(
        node, status=NodeStatus.RUNNING, incarnation=message.incarnation, joined=joined, waiting=False
    )
    state.volatile.last_seen[str(node)] = now
    state.volatile.taken_by_suspension.discard(str(node))


def record_heartbeat(state: JobState, message: Heartbeat, now: float) -> None:
    """Record that a node lives.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = find_node(state, message.node)
    if node is None or node.status.final:
        return
    if not node.incarnation:  # the previous master died before it could store the registration
        state.nodes.change(node, status=NodeStatus.RUNNING, incarnation=message.incarnation, joined=now)
    if node.incarnation in ("", message.incarnation):
        state.volatile.last_seen[str(node)] = now
        state.volatile.taken_by_suspension.discard(str(node))
        if message.usage is not None:
            state.volatile.statistics.usage[str(node)] = message.usage
        if message.asks_to_leave:
            state.volatile.asking_agents.add(str(node))
        _note_observed_copy(state, node, message.own_copy)


def record_check_report(state: JobState, message: CheckReport) -> None:
    """Record what a node measured with its partners in the node check.

    Raises:
        NotFoundError: the job never had such a node.
    """
    if find_node(state, message.node) is not None:
        result = node_check.CheckResult(message.seconds, message.error)
        state.node_check = node_check.record_result(
            state.node_check, str(message.node), message.round, result
        )


def record_process_report(state: JobState, message: ProcessReport) -> None:
    """Record that a training process reached a state.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: in a collective job, the node is not a member of that version.
    """
    node = find_node(state, message.node)
    if node is None or not node.live:
        return
    state.connected = True
    _require_member(state, node, message.version)
    _note_servers(state, message)
    if message.state is ProcessState.UNFIT:
        _refuse_change(state, message)
    elif message.state is ProcessState.READY:
        state.in_place = state.in_place or message.in_place
        state.replica_size = max(state.replica_size, message.replica_size)
        state.versions = cluster_versions.report_ready(state.versions, str(node), message.version)
        goodput_steps.note_prepared(state, node, message.version)
    elif message.state is ProcessState.DRAINED:
        state.versions = cluster_versions.report_drained(state.versions, str(node), message.version)
        state.volatile.departure = state.volatile.departure.with_drained(str(node), message.version)
    elif message.state is ProcessState.TRAINING and _trains(node):
        state.versions = cluster_versions.report_trained(state.versions, message.version)
        _note_copy(state, node, own_copy=message.own_copy)
        state.volatile.saves = state.volatile.saves or message.saves


def _note_observed_copy(state: JobState, node: JobNode, own_copy: bool | None) -> None:
    """Keep what an agent has seen of a program that does not use the library; else the program says it."""
    if own_copy is not None and not state.connected and _trains(node):
        _note_copy(state, node, own_copy=own_copy)


def _note_copy(state: JobState, node: JobNode, *, own_copy: bool) -> None:
    """Keep it by rank: while a lost node is replaced, nothing changes."""
    place = f"{node.type}-{node.rank}"
    if own_copy != (place in state.own_copies):
        other_places = set(state.own_copies) - {place}
        state.own_copies = tuple(sorted(other_places | {place} if own_copy else other_places))


def _note_servers(state: JobState, message: ProcessReport) -> None:
    """Keep the strictest report, and the newest of them: a process that prepares another version can detect
    more obstacles to a change of the servers than a process that trains.
    """
    recorded, reported = state.servers, message.servers
    if reported is not None and (
        recorded is None or STRICTNESS[reported.changes] >= STRICTNESS[recorded.changes]
    ):
        state.servers = reported


def _refuse_change(state: JobState, message: ProcessReport) -> None:
    change, plan = state.versions.change, state.plan
    if change is None or change.number != message.version or plan is None or message.servers is None:
        return
    if change.cause is cluster_versions.ChangeCause.PLAN:
        state.plan = replace(
            plan, broken=f"with other servers the model would differ: {message.servers.reason}"
        )


def record_step_report(state: JobState, message: StepReport) -> None:
    """Record the global step of a process. Reports of versions other than the one that trains don't count. A
    program that does not use the library otherwise trains in the version for which it was started.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: in a collective job, the node is not a member of that version.
    """
    node = find_node(state, message.node)
    active, change = state.versions.active, state.versions.change
    trains = active.number if active else 0 if state.connected or change is None else change.number
    if node is not None:
        _require_member(state, node, message.version)
    if node is None or not _trains(node) or message.version != trains:
        return
    state.volatile.statistics.record_step(message)
    state.volatile.records_total = message.records_total or state.volatile.records_total
    steps = state.steps
    if not steps.first_time:
        first = (message.step, message.first_step_time)
        steps = StepProgress(message.step, message.time, *first, records=message.records)
    elif message.step > steps.step:
        time = max(steps.time, message.time)
        steps = replace(steps, step=message.step, time=time, records=message.records)
    if message.first_step_time < steps.first_time:
        steps = replace(steps, first_time=message.first_step_time)
    state.steps = steps
    if active is not None:
        state.versions = cluster_versions.report_trained(state.versions, message.version)


def record_death_report(state: JobState, message: ExitReport) -> None:
    """Record early that a process has ended, if the other members can continue in place. The agent asks what
    to do about the exit later (`decide_exit`).

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = find_node(state, message.node)
    if node is None or not node.live or node.incarnation not in ("", message.incarnation):
        return
    active = state.versions.active
    if active is None or not _ends_in_place(state, node, message):
        return
    if not set(state.holders).intersection(active.without([node.id])):
        return
    if message.code == CLUSTER_LOST_EXIT_CODE:  # the node is sound
        state.versions = cluster_versions.note_ended(state.versions, node.id)
    else:
        reason = relaunch.reported_reason(message)
        end_node(state, node, NodeStatus.FAILED, reason, message.code, _output_of(message, reason))


def _ends_in_place(state: JobState, node: JobNode, message: ExitReport) -> bool:
    """Whether a process of the active version failed, and that version can continue in place. Such a process
    does not fail because another member was lost."""
    active = state.versions.active
    serves = active is not None and active.process_of(node.id) == message.version
    return serves and state.settings.collective and bool(message.code) and bool(state.holders)


def decide_exit(state: JobState, message: ExitReport, now: float) -> ExitVerdict | None:
    """Decide whether the exit of a training process ends its node. Return None while this is undecided;
    call again after a change, or a little later.

    A worker often fails because its version lost another member, and the master may learn of that loss only a
    moment later.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = find_node(state, message.node)
    if node is None or not node.live or node.incarnation not in ("", message.incarnation):
        if node is not None and node.released:
            end_node(state, node, NodeStatus.SUCCEEDED, ExitReason.SUCCEEDED, message.code)
        return ExitVerdict(wait=False)
    _note_observed_copy(state, node, message.own_copy)
    if _is_of_former_group(state, message.version):
        return ExitVerdict(wait=True)
    reason = relaunch.reported_reason(message)
    if reason is ExitReason.SUCCEEDED and _only_prepares(state, message.version):
        reason = ExitReason.UNKNOWN
    own = reason in _OWN_ENDS or node.type == names.PS_TYPE
    if _ends_in_place(state, node, message):
        state.versions = cluster_versions.note_ended(state.versions, node.id)
        own = message.code != CLUSTER_LOST_EXIT_CODE
    message = message.model_copy(update={"version": _present_version(state, node, message.version)})
    if not own and (_follows_from_loss(state, message.version) or _breaks_switch(state, message)):
        _keep_waiting(state, node, message)
        return ExitVerdict(wait=True)
    if not own and _may_follow_from_loss(state, node, message):
        since = state.volatile.exits_since.setdefault(str(node), now)
        if now - since < state.settings.timeouts.verdict:
            return None
    status = NodeStatus.SUCCEEDED if reason is ExitReason.SUCCEEDED else NodeStatus.FAILED
    end_node(state, node, status, reason, message.code, _output_of(message, reason))
    return ExitVerdict(wait=False)


def _output_of(message: ExitReport, reason: ExitReason) -> str:
    """The end of a process's output; "" if the node was told to end, which explains it."""
    return "" if reason is ExitReason.KILLED else message.last_lines


def record_crash_report(state: JobState, message: CrashReport) -> None:
    """Record that a process ended while it prepared the next version.

    This may happen as often as the node may be replaced. After that, the plan that wants the version fails;
    without a plan the node has failed, unless it trains in the active version. A process that ended because
    its group did not form does not count against its node: `Timeouts.prepare` finds the missing member.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = find_node(state, message.node)
    change = state.versions.change
    if node is None or not node.live or node.incarnation != message.incarnation:
        return
    if change is None or change.number != message.version:
        return
    state.versions = cluster_versions.withdraw_ready(state.versions, str(node))
    if state.settings.collective and message.code == CLUSTER_LOST_EXIT_CODE:
        return
    if message.crashes <= state.settings.budget(node.type, node.rank):
        return
    training = state.versions.active.members if state.versions.active else ()
    if change.cause is cluster_versions.ChangeCause.MEMBERSHIP and node.id in training:
        # It can't prepare a second process, but continues to train in the active version.
        rendezvous.give_up_newcomers(state, math.inf)
    elif change.cause is not cluster_versions.ChangeCause.PLAN:
        reason = relaunch.exit_reason(message.code)
        counted = ExitReason.UNKNOWN if reason is ExitReason.SUCCEEDED else reason
        end_node(state, node, NodeStatus.FAILED, counted, message.code, message.last_lines)
    elif state.plan is not None:
        times = f"ended {message.crashes} times while it was prepared, with code {message.code}"
        cause = relaunch.describe_cause(message.last_lines, "", message.code)
        state.plan = replace(state.plan, broken=f"the process of {node} {times}" + (cause and f": {cause}"))


def record_function_result(state: JobState, message: ResultReport) -> bool:
    """Record what a worker's training function returned, if it is the job's result. The job's result comes
    from the lowest rank; if that rank reports again, as after a restart, its last report counts.

    Returns:
        Whether it was recorded.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = find_node(state, message.node)
    if node is None or not node.live or not _trains(node):
        return False
    rank = _rank_of_result(state, node)
    if state.result is not None and rank > state.result.rank:
        return False
    state.result = FunctionResult(rank, message.result)
    return True


def _rank_of_result(state: JobState, node: JobNode) -> int:
    """The rank by which results are compared; the chief's is 0. In a collective job, members of the training
    group come before other nodes.
    """
    if state.settings.collective:
        members = state.world.members if state.world else ()
        return members.index(node.id) if node.id in members else len(members) + node.id
    return 0 if node is state.chief else 1 + node.rank


def _trains(node: JobNode) -> bool:
    """Whether the node trains. An evaluator also runs a process for each version of the training cluster, but
    its steps are not training steps.
    """
    return node.type in (names.CHIEF_TYPE, names.WORKER_TYPE)


def _require_member(state: JobState, node: JobNode, version: int) -> None:
    """In a collective job, reject reports about a version from nodes that are not its members."""
    if not state.settings.collective or node.type != names.WORKER_TYPE:
        return
    active, change = state.versions.active, state.versions.change
    members_by_version = {active.number: active.members} if active else {}
    if change is not None and change.number:
        members_by_version[change.number] = change.target
    if node.id not in members_by_version.get(version, ()):
        text = (
            "; ".join(f"version {number}: workers {list(ids)}" for number, ids in members_by_version.items())
            or "none yet"
        )
        raise ConflictError(f"{node} is not a member of version {version} ({text}): its process has to end")


def _holds_model(state: JobState, node: JobNode) -> bool:
    active = state.versions.active
    if active is None:
        return False
    if node.type == state.settings.member_type:
        return node.id in active.members
    return node.type == state.settings.chief_type and node.id == active.chief


def _may_follow_from_loss(state: JobState, node: JobNode, message: ExitReport) -> bool:
    """Whether the process may have failed because of another member's loss that the master does not know yet:
    its version has another member that has not ended, or the process itself says so.
    """
    trains = state.versions.active or state.self_formed
    if trains is None or message.version != trains.number:
        return False
    if message.code == CLUSTER_LOST_EXIT_CODE:
        return bool(trains.members)
    members = [state.nodes.find(state.settings.member_type, node_id) for node_id in trains.members]
    peers = [member for member in members if member is not None and str(member) != str(node)]
    return any(not member.status.final for member in peers)


def _is_of_former_group(state: JobState, version: int) -> bool:
    """Whether the process belongs to an earlier group of a program that does not use the library.

    That group has lost a member, so all members restart, however this process ended.
    """
    formed = state.self_formed
    return formed is not None and 0 < version != formed.number


def _present_version(state: JobState, node: JobNode, process: int) -> int:
    """The version that a process belongs to now. `process` is the version for which it was started: a process
    that changes its group in place is not restarted for the next version.
    """
    active = state.versions.active
    goes_on = state.settings.collective and active is not None and active.process_of(node.id) == process
    return active.number if goes_on and active is not None else process


def _is_left_behind(state: JobState, version: int) -> bool:
    """Whether a later version is active. If so, the node's leases and reports belong to its process in that
    version.
    """
    active = state.versions.active
    return active is not None and version < active.number


def _only_prepares(state: JobState, version: int) -> bool:
    """Whether the process belongs to a training group that is not active yet, and so can't have finished its
    work.
    """
    active = state.versions.active
    if not state.settings.collective or state.self_formed is not None:
        return False
    return version > (active.number if active is not None else 0)


def _follows_from_loss(state: JobState, version: int) -> bool:
    """Whether the process failed because its version lost a member or was succeeded by another."""
    active, change, formed = state.versions.active, state.versions.change, state.self_formed
    if formed is not None:
        return bool(state.lost_members(formed.members))
    if active is None or version > active.number:
        return False
    recovering = change is not None and not change.cause.orderly
    return version < active.number or recovering or bool(state.lost_members(active.members))


def _breaks_switch(state: JobState, message: ExitReport) -> bool:
    """Whether a process ended before the first step of a plan's version; then the plan fails, not the
    node.
    """
    plan = state.plan
    if plan is None or not plan.activated or message.version != plan.number:
        return False
    return state.versions.trained < plan.number


def _keep_waiting(state: JobState, node: JobNode, message: ExitReport) -> None:
    """Keep the node for the next version. Unless its process ended because of a loss, its plan is broken."""
    state.volatile.exits_since.pop(str(node), None)
    if state.plan is not None and not _follows_from_loss(state, message.version):
        cause = relaunch.describe_cause(message.last_lines, "", message.code)
        broken = f"the process of {node} ended with code {message.code} before the first step"
        broken += cause and f": {cause}"
        state.plan = replace(state.plan, broken=broken)
    if state.self_formed is None and not _is_left_behind(state, message.version):
        forget_processes(state, node)
        state.nodes.change(node, waiting=True)
