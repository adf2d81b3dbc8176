"""Between hangs, the check of nodes, goodput and restarts, each pure for itself, and the rest of the state."""

from edl_workflows.jobs import names
from edl_workflows.master.state import hang, node_check, version_steps
from edl_workflows.master.state.cluster_versions import ChangeCause
from edl_workflows.master.state.goodput import TrainingMoment
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.messages import end_node
from edl_workflows.master.state.nodes import ExitReason, NodeStatus
from edl_workflows.protocol.datasets import TaskType
from edl_workflows.protocol.node_check import CheckMember, CheckRound


def expire_leases(state: JobState, now: float) -> None:
    """Shards that nobody answers for return to the queue. A node that held some for evaluation, and answered for no others, hangs,
    and is replaced as one that failed, as upstream removes it; but not a critical one. Time in which no master listened is not counted."""
    if state.listening_since is None:
        state.listening_since = now
    for lease in state.shards.expire(now, state.listening_since):
        node_type, _, node_id = lease.node.rpartition("-")
        node = state.nodes.find(node_type, int(node_id))
        over = state.outcome is not None or state.settings.suspend
        hangs = lease.silent and lease.task_type is TaskType.EVALUATION
        if not hangs or node is None or not node.live or over:
            continue
        if not state.settings.critical(node.type, node.rank):
            why = f"it held shards of {lease.dataset} and acknowledged none of any data set for {lease.timeout:g} s"
            end_node(state, node, NodeStatus.FAILED, ExitReason.EVALUATION_TIMEOUT, message=why)


def note_end_of_suspension(state: JobState) -> None:
    """Remembers which nodes a suspension took: it is over, and they are no failures. Before `count_useful_time`, which counts it off."""
    if state.goodput.goodput.suspended and not state.settings.suspend:
        state.taken_by_suspension = {
            str(node) for node in state.nodes if node.replaced_by < 0 and not node.given_up
        }


def count_useful_time(state: JobState, now: float) -> None:
    """Counts what of the job's time is useful; before a loss is acted on, since then the lost steps are not seen any more."""
    active = state.versions.active
    seen = TrainingMoment(
        version=active.number if active else 0,
        step=state.steps.step,
        stepped=state.steps.first_time > 0,
        saved=tuple(saved.step for saved in state.checkpoints.saved),
        suspended=state.settings.suspend,
        over=state.outcome is not None,
    )
    state.goodput.look(seen, now)


def find_hang(state: JobState, now: float) -> None:
    """Looks whether training moves, and acts where it does not."""
    said = state.settings.fault_tolerance
    rules = hang.HangRules(said.hang_timeout_seconds, said.hang_action, said.max_restarts)
    state.hangs, state.moved, step = hang.watch_progress(state.hangs, state.moved, _marker(state), rules, now)
    if step is hang.HangStep.RESTART:
        version_steps.restart_processes(state, now)


def too_many_failed_saves(state: JobState) -> str:
    """Why the job is given up, since its checkpoints can't be saved; "" while it is not. How long the last one is tried is the
    chief's decision."""
    failing, most = state.checkpoints.failing, state.settings.fault_tolerance.max_failed_saves
    counted = failing.row - failing.last
    if not most or counted < most:
        return ""
    return f"{counted} checkpoints in a row could not be saved (maxFailedSaves): {failing.error}"


def check_nodes(state: JobState, now: float) -> None:
    """Has nodes checked that come before training begins; those that fail end, and are replaced."""
    said = state.settings.fault_tolerance
    if not said.node_check or state.versions.active is not None:
        return
    live = {str(node): node for node in state.nodes if node.live}
    there = [name for name, node in live.items() if node.registered]
    rules = node_check.NodeCheckRules(said.node_check_timeout_seconds, said.straggler_ratio)
    complete = len(there) == len(live)
    state.node_check, faulty = node_check.advance_check(
        state.node_check, there, complete=complete, rules=rules, now=now
    )
    for name, why in faulty.items():
        end_node(state, live[name], NodeStatus.FAILED, ExitReason.CHECK_FAILED, message=f"node check: {why}")


def check_round(state: JobState) -> CheckRound | None:
    """The round under way, as nodes are told of it."""
    current, settings = state.node_check.round, state.settings
    if current is None or state.versions.active is not None:
        return None
    groups = [[_member(state, name) for name in group] for group in current.groups]
    seconds = settings.fault_tolerance.node_check_timeout_seconds
    return CheckRound(number=current.number, groups=groups, seconds=seconds)


def find_stragglers(state: JobState) -> dict[str, float]:
    """Nodes that are slower than the others of their role by more than the job allows, with how many times slower: workers
    by the records that they process, before that all nodes by their check."""
    ratio = state.settings.fault_tolerance.straggler_ratio
    measured = state.statistics.seconds_per_shard() or state.node_check.passed
    return node_check.slower_than_median(measured, ratio)


def _member(state: JobState, name: str) -> CheckMember:
    node_type, _, node_id = name.rpartition("-")
    settings = state.settings
    # No process listens before training: the port of even versions is free, whatever number the first one gets.
    address = names.node_address(settings.name, settings.namespace, node_type, int(node_id), 0)
    return CheckMember(node=name, address=address)


def _marker(state: JobState) -> tuple[object, ...] | None:
    """What differs when training moves; None while it is not expected to, or while nobody ever said that it does.

    A plan has time-outs of its own. Newcomers are let in by nobody's plan: processes that never stop for them hang, too.
    """
    active, change, newest = state.versions.active, state.versions.change, state.checkpoints.newest
    changing = change is not None and change.cause is not ChangeCause.MEMBERSHIP
    if active is None or changing or not state.trainers:
        return None
    if not (state.versions.trained or active.members):
        return None
    records = sum(progress.records_done for progress in state.shards.all_progress())
    ended = sum(node.status.final for node in state.nodes)
    progress = (state.steps.step, records, newest.uri if newest else "", ended)
    return active.number, progress, (change.number, change.ready, change.drained) if change else None
