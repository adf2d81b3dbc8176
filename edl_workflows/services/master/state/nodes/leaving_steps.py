"""The last checkpoint before nodes end on purpose.

Parameter servers hold the model, and only the chief can save it. So before one of them ends, all processes
stop between two steps, then the chief saves, and only then the nodes may go: the checkpoint holds the last
step. In other jobs each process saves when it is told to end, after its group has agreed on the step. It
needs its time and the master for that, but no other node.
"""

from collections.abc import Collection
from dataclasses import replace

from edl_workflows.core.jobs.grace import needed_grace, save_grace
from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import LeaveReport, LeaveVerdict
from edl_workflows.services.master.state import checkpoints
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.messages import find_node
from edl_workflows.services.master.state.nodes.registry import JobNode

GATHER_SECONDS = 1.0
"""Within this time all pods of a deleted job are told to end."""
DRAIN_SECONDS = 20.0
"""Time in which the other workers stop. Then the chief saves without them, since one of them may hang."""


def record_leave(state: JobState, message: LeaveReport, now: float) -> None:
    """Record that a node's pod is told to end. Repeatable.

    Raises:
        NotFoundError: the job never had such a node.
    """
    node = find_node(state, message.node)
    if node is None or not node.live or node.incarnation not in ("", message.incarnation):
        return
    departure = state.volatile.departure
    if str(node) not in departure.since:
        state.volatile.departure = replace(departure, since={**departure.since, str(node): now})


def record_deletion(state: JobState) -> None:
    """Record that the job was deleted."""
    state.volatile.departure = replace(state.volatile.departure, deleted=True)


def leave_verdict(state: JobState, message: LeaveReport, now: float) -> LeaveVerdict:
    """Whether a node that is told to end is still needed."""
    grace = save_grace(state.checkpoints.save_seconds)
    node = find_node(state, message.node)
    since = state.volatile.departure.since.get(str(node)) if node is not None else None
    if since is None or not state.settings.has_ps or message.node.type == names.EVALUATOR_TYPE:
        return LeaveVerdict(wait=False, seconds=grace)
    gathers = _may_save(state) and now - since < GATHER_SECONDS
    return LeaveVerdict(wait=gathers or is_save_awaited(state, now), seconds=grace)


def settle_departure(state: JobState, now: float) -> None:
    """Begin the last checkpoint when it is needed, and request it once all others have stopped."""
    departure, active = state.volatile.departure, state.versions.active
    if not (departure.since or departure.version or whole_job_leaves(state)):
        return
    live = {str(node) for node in state.nodes if node.live}
    since = {node: at for node, at in departure.since.items() if node in live}
    departure = replace(departure, since=since)
    if active is None or not _must_save(state, since):
        if departure.request and state.checkpoints.request == departure.request:
            state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
        departure = departure.without_save()
    elif departure.version != active.number:
        request = f"leave-{active.number}-{state.checkpoints.last_number}"
        departure = replace(departure, version=active.number, begun=now, request=request, drained=frozenset())
    state.volatile.departure = departure
    if not departure.version or state.checkpoints.request not in ("", departure.request):
        return
    if is_save_awaited(state, now) and (_all_stopped(state) or now - departure.begun > DRAIN_SECONDS):
        state.checkpoints = checkpoints.request_save(state.checkpoints, departure.request)


def is_save_awaited(state: JobState, now: float) -> bool:
    """Whether the last checkpoint is still to be made, and the chief can make it."""
    departure = state.volatile.departure
    graces = [spec.grace for spec in state.settings.roles.values()]  # the first save may take any time
    longest = max(save_grace(state.checkpoints.save_seconds), *graces)
    return bool(
        departure.version
        and state.checkpoints.result(departure.request) is None
        and _is_at_work(state.chief)
        and now - departure.begun < longest
    )


def whole_job_leaves(state: JobState) -> bool:
    """Whether all nodes are removed on purpose: the job is suspended or deleted."""
    return state.settings.suspend or state.volatile.departure.deleted


def somebody_leaves(state: JobState) -> bool:
    """Whether nodes that were told to end have not ended yet."""
    live = {str(node) for node in state.nodes if node.live}
    return not live.isdisjoint(state.volatile.departure.since)


def warn_of_short_grace(state: JobState) -> list[str]:
    """Warn while there is time: the grace of a running pod can't be changed. The seconds are rounded, since
    followers of the job log each new warning."""
    needed = needed_grace(state.checkpoints.save_seconds)
    roles = {role: spec.grace for role, spec in state.settings.roles.items() if role != names.EVALUATOR_TYPE}
    short = ", ".join(f"{role} {grace} s" for role, grace in sorted(roles.items()) if grace < needed)
    if not short or not state.checkpoints.save_seconds:
        return []
    minutes = -(-needed // 60)
    warning = (
        f"a last checkpoint may take {60 * minutes} s, but pods get less to end ({short}): if the job is "
        "deleted, or a pod evicted, the work since the newest checkpoint may be lost. Suspend the job before "
        "you delete it, and increase terminationGracePeriodSeconds in the templates"
    )
    return [warning]


def is_pausing(state: JobState) -> bool:
    """Whether the processes of the active version stop, or have stopped, for a last checkpoint."""
    active = state.versions.active
    return active is not None and state.volatile.departure.version == active.number


def _may_save(state: JobState) -> bool:
    """Whether servers hold a model that was trained, and the program saves on request."""
    active, change = state.versions.active, state.versions.change
    saves = state.volatile.saves or bool(state.checkpoints.last_number)
    lost = change is not None and not change.cause.orderly
    trained = active is not None and state.versions.trained >= active.number
    sound = state.outcome is None and not lost and not state.hangs.since
    return state.settings.has_ps and saves and trained and sound


def _must_save(state: JobState, leaving: Collection[str]) -> bool:
    """Whether the model has to be saved before the `leaving` nodes or all of them end."""
    if not _may_save(state):
        return False
    begun = is_pausing(state)
    if not begun and not _is_at_work(state.chief):
        return False
    if whole_job_leaves(state):
        # An agent of an earlier version ends at once, and its program does not save while the job is paused.
        chief = str(state.chief)
        return begun or chief in state.volatile.asking_agents or chief in leaving
    if not begun and state.plan is not None and state.plan.phase is not ScalePlanPhase.PENDING:
        return False  # a plan makes its own checkpoints
    active = state.versions.active
    holders = {f"{names.PS_TYPE}-{member}" for member in active.members} if active is not None else set()
    return any(node in leaving for node in (*holders, str(state.chief)))


def _all_stopped(state: JobState) -> bool:
    change = state.versions.change
    drained = state.volatile.departure.drained | set(change.drained if change is not None else ())
    return all(str(node) in drained for node in state.trainers if node != state.chief)


def _is_at_work(chief: JobNode | None) -> bool:
    return chief is not None and chief.live and chief.registered and not chief.waiting
