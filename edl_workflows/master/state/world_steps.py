"""Between the worlds of a collective job (`rendezvous`, `cluster_versions`) and the rest of the state.

A world is a cluster version whose members are workers. A lost member breaks it: the survivors make the next one. Workers that
join are let in between two steps, after a drain and a checkpoint. What a plan does is `plan_steps`' matter.
"""

from edl_workflows.jobs import names
from edl_workflows.master.state import (
    checkpoints,
    cluster_versions,
    rendezvous,
    version_steps,
    worker_manager,
)
from edl_workflows.master.state.cluster_versions import ChangeCause
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.nodes import JobNode, NodeStatus
from edl_workflows.master.state.ps_manager import MemberResize
from edl_workflows.master.state.rendezvous import RendezvousVerdict, WaitingWorkers

REST_SECONDS = 60.0
"""After newcomers could not be let in, before it is tried again."""


def advance_group(state: JobState, now: float) -> None:
    """Takes the change of worlds on, or begins one that a join or a loss calls for.

    1. A broken world is followed by one of its survivors.  2. Newcomers wait for the next chance if one of them is lost.
    3. The next world is made of those who have joined.  4. Who is prepared takes over.  5. Too few are noted.
    """
    _recover(state, now)
    if not chief_succeeded(state):
        version_steps.call_back_finished(state, now)
    _keep_out(state)
    _gather(state, now)
    if state.versions.change is not None and state.versions.change.cause is ChangeCause.PLAN:
        state.versions = cluster_versions.assign_number(state.versions, frozenset(state.joined))
    _switch(state, now)
    _count_missing(state, now)


def rendezvous_verdict(state: JobState, now: float) -> RendezvousVerdict:
    """What the rendezvous says now; for people, and to decide."""
    change, active = state.versions.change, state.versions.active
    intact = active is not None and (change is None or change.cause.orderly)
    present = active.members if active is not None else ()
    if change is not None and not change.cause.orderly:
        present = change.target
    expected = 0.0
    if state.self_formed is not None:
        # Whoever begins again begins at the beginning: better with the replacement than with survivors alone.
        present = ()
        expected = max(
            (n.since for n in state.nodes.live(names.WORKER_TYPE) if not n.registered), default=0.0
        )
    wanted = state.counts.get(names.WORKER_TYPE, 0)
    waiting = WaitingWorkers(present, intact, state.joined, wanted, expected)
    return rendezvous.next_group(waiting, state.rendezvous, now)


def give_up_newcomers(state: JobState, until: float) -> None:
    """The active world trains on as it is; who waits to be let in waits on, at least until then."""
    state.versions = cluster_versions.cancel_change(state.versions)
    state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
    state.newcomers_wait_until = until


def resized_group(state: JobState, wanted: MemberResize, now: float) -> tuple[int, ...]:
    """The members that a plan makes of the active world; makes the nodes that it needs.

    The newest leave first. A migrated worker leaves too, and another comes for it; who comes stands behind those who stay.
    """
    assert state.versions.active is not None
    members = state.versions.active.members
    count = len(members) if wanted.count is None else wanted.count
    stay, migrate = members[:count], wanted.migrate or {}
    spares = [
        node.id
        for node in state.nodes.live(names.WORKER_TYPE)
        if node.id not in members and node.id not in migrate
    ]
    added = spares[: count - len(stay)]
    for node_id in stay:
        if node_id in migrate:
            leaves = state.nodes.find(names.WORKER_TYPE, node_id)
            assert leaves is not None, "it was just found by its pod"
            added.append(state.nodes.add(names.WORKER_TYPE, leaves.rank, now, migrate[node_id]).id)
    taken = worker_manager.taken_ranks(state.nodes, names.WORKER_TYPE)
    missing = count - len([node for node in stay if node not in migrate]) - len(added)
    for rank in worker_manager.free_ranks(taken, missing):
        added.append(state.nodes.add(names.WORKER_TYPE, rank, now, wanted.resource).id)
    return (*(node for node in stay if node not in migrate), *added)


def _recover(state: JobState, now: float) -> None:
    active, change = state.versions.active, state.versions.change
    if active is None or (change is not None and change.cause is not ChangeCause.MEMBERSHIP):
        return
    if not (state.lost_members(active.members) or state.starts_from_damaged) or chief_succeeded(state):
        return
    state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
    state.versions = cluster_versions.begin_change(state.versions, ChangeCause.RECOVERY, active.members)
    version_steps.return_to_checkpoint(state, now)


def _keep_out(state: JobState) -> None:
    change, active = state.versions.change, state.versions.active
    if change is None or change.cause is not ChangeCause.MEMBERSHIP:
        return
    assert active is not None
    if state.lost_members(change.target) or _some_ended(state):
        give_up_newcomers(state, 0.0)


def _gather(state: JobState, now: float) -> None:
    cause = _cause(state, now)
    if cause is None or not state.checked:
        return
    change = state.versions.change
    if change is not None and change.number and not state.lost_members(change.target):
        return  # it is being prepared
    members = rendezvous_verdict(state, now).members
    if members is not None:
        state.versions = cluster_versions.begin_change(state.versions, cause, members)
        state.versions = cluster_versions.assign_number(state.versions, frozenset(state.joined))
    elif change is not None and change.number:
        # Too few are left of those it was prepared for.
        state.versions = cluster_versions.begin_change(state.versions, cause, change.target)


def _cause(state: JobState, now: float) -> ChangeCause | None:
    """Why there may be a next world now; None while there is no reason, or a plan's or the newcomers' is under way."""
    versions = state.versions
    if versions.change is not None:
        return None if versions.change.cause.orderly or chief_succeeded(state) else versions.change.cause
    if versions.active is None:
        return ChangeCause.INITIAL
    planned = state.plan is not None and not state.plan.phase.final
    if not versions.settled or planned or _some_ended(state) or now < state.newcomers_wait_until:
        return None
    return ChangeCause.MEMBERSHIP


def _switch(state: JobState, now: float) -> None:
    change = state.versions.change
    ready = cluster_versions.members_ready(state.versions, names.WORKER_TYPE)
    if change is None or change.cause is ChangeCause.PLAN or not ready:
        return
    if change.cause is not ChangeCause.MEMBERSHIP:
        version_steps.activate_version(state, state.checkpoints.newest)
        return
    if not change.draining:
        state.versions = cluster_versions.begin_drain(state.versions)
    if not version_steps.is_drained(state):
        return
    request = f"world-{change.number}"
    state.checkpoints = checkpoints.request_save(state.checkpoints, request)
    saved = state.checkpoints.result(request)
    if isinstance(saved, str):
        give_up_newcomers(state, now + REST_SECONDS)
    elif saved is not None:
        version_steps.activate_version(state, saved)


def _count_missing(state: JobState, now: float) -> None:
    enough = len(state.joined) >= state.rendezvous.min_nodes or _some_ended(state)
    if enough:
        state.missing_since = None
    elif state.missing_since is None:
        state.missing_since = now


def _some_ended(state: JobState) -> bool:
    """Whether a member has ended with success: the others are about to."""
    world = state.world
    found = [state.nodes.find(names.WORKER_TYPE, node_id) for node_id in (world.members if world else ())]
    return any(node is not None and _succeeded(node) for node in found)


def chief_succeeded(state: JobState) -> bool:
    """Whether the chief has ended with success: the model is complete, whatever becomes of the others."""
    return state.chief is not None and _succeeded(state.chief)


def _succeeded(node: JobNode) -> bool:
    return node.status is NodeStatus.SUCCEEDED and node.replaced_by < 0
