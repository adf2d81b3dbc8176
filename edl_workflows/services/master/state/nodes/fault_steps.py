"""Applies the end of a node, the node check and expired leases to the rest of the state."""

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.datasets import TaskType
from edl_workflows.core.protocol.nodes import CheckMember, CheckRound
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import node_check
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode, NodeStatus
from edl_workflows.services.master.state.versions import cluster_versions


def end_node(
    state: JobState,
    node: JobNode,
    status: NodeStatus,
    reason: ExitReason,
    code: int | None = None,
    message: str = "",
) -> None:
    """Record that a node ended, and re-queue its shards. Do nothing if the node has already ended."""
    if node.status.final:
        return
    if (
        node.type == names.PS_TYPE
        and status is NodeStatus.SUCCEEDED
        and state.outcome is None
        and not node.released
    ):
        status, reason = NodeStatus.FAILED, ExitReason.UNKNOWN  # it was not told to end
    forget_processes(state, node)
    state.volatile.statistics.forget(str(node))
    state.volatile.last_seen.pop(str(node), None)
    state.volatile.exits_since.pop(str(node), None)
    state.volatile.signs.pop(str(node), None)
    state.nodes.change(
        node, status=status, exit_reason=reason, exit_code=code, message=message[-2048:], waiting=False
    )


def end_lost_nodes(state: JobState, now: float) -> None:
    """End the nodes on lost machines, long before the time of their agents' heartbeats is over.

    A deleted pod whose end nobody confirms in time is lost, even if its agent still answers: the machine has
    only lost its kubelet, and the pod ends as soon as that is back.
    """
    limit = state.settings.timeouts.unreachable
    for node in state.nodes:
        loss = state.volatile.losses.get(str(node))
        if loss is None or node.status.final:
            continue
        reason = ""
        if loss.gone_at is not None and now >= loss.gone_at:
            reason = "its pod was deleted, and its machine does not confirm the end"
        elif loss.unreachable_since is not None:
            seen = state.volatile.last_seen.get(str(node), loss.unreachable_since)
            silent = now - max(seen, loss.unreachable_since)
            if silent > limit:
                reason = f"neither its machine nor its agent has answered for {silent:.0f} s"
        if reason:
            end_node(state, node, NodeStatus.FAILED, ExitReason.LOST, message=reason)


def forget_processes(state: JobState, node: JobNode) -> None:
    state.shards.release_node(node.ref)
    state.versions = cluster_versions.forget_reports(state.versions, str(node))
    if node.type == names.PS_TYPE:
        state.versions = cluster_versions.forget_server(state.versions, node.id)


def expire_leases(state: JobState, now: float) -> None:
    """Re-queue the shards of expired leases.

    A node that holds evaluation shards and has acknowledged no shard of any data set is considered to hang:
    it fails and is replaced (DLRover removes it), unless it is critical. Time in which no master was
    running does not count.
    """
    if state.volatile.listening_since is None:
        state.volatile.listening_since = now
    for lease in state.shards.expire(now, state.volatile.listening_since):
        node_type, _, node_id = lease.node.rpartition("-")
        node = state.nodes.find(node_type, int(node_id))
        over = state.outcome is not None or state.settings.suspend
        hangs = lease.silent and lease.task_type is TaskType.EVALUATION
        if not hangs or node is None or not node.live or over:
            continue
        if not state.settings.critical(node.type, node.rank):
            reason = (
                f"it held shards of {lease.dataset} and acknowledged no shard of any data set "
                f"for {lease.timeout:g} s"
            )
            end_node(state, node, NodeStatus.FAILED, ExitReason.EVALUATION_TIMEOUT, message=reason)


def too_many_failed_saves(state: JobState) -> str:
    """Why the job fails because its checkpoints can't be saved; "" if it need not fail.

    Attempts at the training's last checkpoint are not counted: the chief decides how long to repeat them.
    """
    failing, most = state.checkpoints.failing, state.settings.fault_tolerance.max_failed_saves
    counted = failing.row - failing.last
    if not most or counted < most:
        return ""
    return f"{counted} checkpoints in a row could not be saved (maxFailedSaves): {failing.error}"


def check_nodes(state: JobState, now: float) -> None:
    """Run the node check on all nodes that register before training begins. Nodes that fail it are
    replaced.
    """
    fault_tolerance = state.settings.fault_tolerance
    if not fault_tolerance.node_check or state.versions.active is not None:
        return
    live = {str(node): node for node in state.nodes if node.live}
    registered = [name for name, node in live.items() if node.registered]
    rules = node_check.NodeCheckRules(
        fault_tolerance.node_check_timeout_seconds, fault_tolerance.straggler_ratio
    )
    complete = len(registered) == len(live)
    state.node_check, faulty = node_check.advance_check(
        state.node_check, registered, complete=complete, rules=rules, now=now
    )
    for name, reason in faulty.items():
        end_node(
            state, live[name], NodeStatus.FAILED, ExitReason.CHECK_FAILED, message=f"node check: {reason}"
        )


def check_round(state: JobState) -> CheckRound | None:
    """The present round, as sent to the nodes."""
    current, settings = state.node_check.round, state.settings
    if current is None or state.versions.active is not None:
        return None
    groups = [[_to_check_member(state, name) for name in group] for group in current.groups]
    seconds = settings.fault_tolerance.node_check_timeout_seconds
    return CheckRound(number=current.number, groups=groups, seconds=seconds)


def find_stragglers(state: JobState) -> dict[str, float]:
    """Nodes that are slower than the median by more than the job allows, each with its ratio to the median.

    Nodes are compared by their seconds per data shard. Until these are known, they are compared by the
    seconds that their node check took.
    """
    ratio = state.settings.fault_tolerance.straggler_ratio
    measured = state.volatile.statistics.seconds_per_shard() or state.node_check.passed
    return node_check.slower_than_median(measured, ratio)


def _to_check_member(state: JobState, name: str) -> CheckMember:
    node_type, _, node_id = name.rpartition("-")
    settings = state.settings
    # The port of even versions is free: no training process listens before training begins.
    address = names.node_address(settings.name, settings.namespace, node_type, int(node_id), 0)
    return CheckMember(node=name, address=address)
