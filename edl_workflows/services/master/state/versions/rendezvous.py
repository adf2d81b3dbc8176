"""Rendezvous of collective jobs: which workers form the next training group, and how the job moves to it.

A training group is a cluster version whose members are workers. Losing a member breaks the group: the
survivors form the next one. Workers that join are admitted between two steps, after a drain and a checkpoint.
Resizing by a ScalePlan is done by `rollout_steps`.

`next_group` is a pure function without memory, so joins, leaves and repeated reports may come in any order.
It follows DLRover's rendezvous manager (and torch's elastic agents): a minimum and a maximum of nodes, in
units, with a time-out after the last join. It differs in three points: ranks are ordered by age (as in
DLRover's design, but not in its code); rounding to units never goes below the minimum; and a new group is
formed only if the members change.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.state import checkpoints
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import replicas
from edl_workflows.services.master.state.nodes.loss_batch import GROUP_SECONDS
from edl_workflows.services.master.state.nodes.registry import JobNode
from edl_workflows.services.master.state.nodes.replicas import MemberResize
from edl_workflows.services.master.state.settings import RendezvousLimits
from edl_workflows.services.master.state.versions import cluster_versions, version_steps
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause


@dataclass(frozen=True)
class WaitingWorkers:
    """The workers that can form the next group.

    Attributes:
        present: members, by rank, of the group that trains or trained last.
        intact: whether that group still trains.
        joined: by id, Unix seconds at which each possible member joined, including live members of `present`.
        desired: how many members the job wants.
        expected: if the group waits for workers that have not joined yet, when the newest of them was
            created, in Unix seconds; else 0.
    """

    present: tuple[int, ...]
    intact: bool
    joined: Mapping[int, float]
    desired: int
    expected: float = 0.0


@dataclass(frozen=True)
class RendezvousVerdict:
    """The next group, or why there is none.

    Attributes:
        members: node ids by rank; None if there is no next group.
        reason: why the group is formed or not, for people.
        until: Unix seconds at which the wait ends if nothing else happens; None if only a join can end it, or
            if the group waits for nothing.
    """

    members: tuple[int, ...] | None
    reason: str
    until: float | None = None


def next_group(waiting: WaitingWorkers, parameters: RendezvousLimits, now: float) -> RendezvousVerdict:
    """The members of the next training group.

    1. Candidates are ordered: survivors of the present group in their order, then newcomers by the time they
       joined. Rank 0 is the oldest member, which holds the model.
    2. If all wanted workers, rounded to units, have joined, they form the group.
    3. If the present group is broken and enough of its members survive, the survivors continue at once,
       together with newcomers that have joined.
    4. If there are enough workers, and none has joined within the waiting time, the present workers form the
       group.
    5. Otherwise the job waits. Below the minimum, only a join ends the wait.

    If the present group still trains and has the right members, there is no next group.
    """
    line = order_members(waiting.present, waiting.joined)
    desired = max(parameters.min_nodes, min(waiting.desired, parameters.max_nodes))
    size = round_to_units(min(len(line), desired), parameters)
    if size < parameters.min_nodes:
        return RendezvousVerdict(None, f"{len(line)} of at least {parameters.min_nodes} workers have joined")
    members = line[:size]
    if waiting.intact and members == waiting.present:
        return RendezvousVerdict(None, "the present group already has the right members")
    survivors = [node for node in waiting.present if node in waiting.joined]
    go_on = not waiting.intact and len(survivors) >= parameters.min_nodes
    if size >= round_to_units(desired, parameters) or go_on:
        return RendezvousVerdict(members, f"{size} of {desired} wanted workers")
    newest = max(waiting.expected, *(waiting.joined[node] for node in line))
    until = newest + parameters.waiting_timeout
    if now >= until:
        reason = (
            f"no worker joined these {size} within {parameters.waiting_timeout:g} s; {desired} are wanted"
        )
        return RendezvousVerdict(members, reason)
    return RendezvousVerdict(None, f"{len(line)} of {desired} wanted workers have joined", until)


def order_members(present: tuple[int, ...], joined: Mapping[int, float]) -> tuple[int, ...]:
    """All workers that have joined: survivors in their order, then newcomers by join time, then by id."""
    survivors = [node for node in present if node in joined]
    newcomers = sorted(joined.keys() - set(present), key=lambda node: (joined[node], node))
    return (*survivors, *newcomers)


def round_to_units(count: int, parameters: RendezvousLimits) -> int:
    """The largest allowed number of members that `count` nodes can form; 0 if they are too few."""
    if count < parameters.min_nodes:
        return 0
    return max(count // parameters.node_unit * parameters.node_unit, parameters.min_nodes)


REST_SECONDS = 60.0
"""Delay before another attempt, after newcomers could not be admitted."""


def advance_group(state: JobState, now: float) -> None:
    """Advance the change of the training group, or begin one after a join or a loss.

    1. The survivors of a broken group begin the next one, in place if one of them holds the model.
    2. Admission of newcomers is abandoned if one of them is lost.
    3. The next group is formed from the workers that have joined.
    4. A group that is prepared becomes active.
    5. The time with too few workers is recorded.
    """
    _replace_broken_group(state, now)
    if not chief_succeeded(state):
        version_steps.call_back_finished(state, now)
    _abandon_admission(state)
    _note_lost_members(state, now)
    _form_group(state, now)
    if state.versions.change is not None and state.versions.change.cause is ChangeCause.PLAN:
        state.versions = cluster_versions.assign_number(state.versions, frozenset(state.joined))
    state.versions = cluster_versions.note_survivors_ready(state.versions, names.WORKER_TYPE)
    _activate_prepared(state, now)
    _count_missing(state, now)


def rendezvous_verdict(state: JobState, now: float) -> RendezvousVerdict:
    """What the rendezvous decides now; also shown in the status."""
    change, active = state.versions.change, state.versions.active
    intact = active is not None and (change is None or change.cause.orderly)
    present = active.members if active is not None else ()
    if change is not None and not change.cause.orderly:
        present = change.target
    expected = 0.0
    if state.self_formed is not None:
        # These programs restart from the beginning in each group, so it is better to wait for replacements.
        present = ()
        expected = max(
            (n.since for n in state.nodes.live(names.WORKER_TYPE) if not n.registered), default=0.0
        )
    joined = state.joined
    if change is not None and change.in_place and not change.cause.orderly:
        # The survivors continue at once; other workers are admitted when their processes are prepared.
        present = tuple(node for node in present if node in state.survivors)
        if round_to_units(len(present), state.rendezvous):
            joined = {node: joined[node] for node in present}
    desired = state.counts.get(names.WORKER_TYPE, 0)
    waiting = WaitingWorkers(present, intact, joined, desired, expected)
    return next_group(waiting, state.rendezvous, now)


def give_up_newcomers(state: JobState, until: float) -> None:
    """Keep the active group as it is. Newcomers are not admitted before `until`."""
    state.versions = cluster_versions.cancel_change(state.versions)
    state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
    state.volatile.newcomers_wait_until = until


def resized_group(state: JobState, resize: MemberResize, now: float) -> tuple[tuple[int, ...], list[JobNode]]:
    """The members of the group that a plan wants, and the nodes to add for it.

    The newest members leave first. A migrated worker leaves, and a new one replaces it. New members are
    ranked after those that stay. Where a replica group loses a member, its other members are ranked after the
    complete replica groups, and form a replica group with new members.
    """
    assert state.versions.active is not None
    members = state.versions.active.members
    count = len(members) if resize.count is None else resize.count
    stay, migrate = members[:count], resize.migrate or {}
    spares = [
        node.id
        for node in state.nodes.live(names.WORKER_TYPE)
        if node.id not in members and node.id not in migrate
    ]
    joining = spares[: count - len(stay)]
    workers = state.members_by_id
    places = [(workers[node].rank, migrate[node]) for node in stay if node in migrate]
    taken = replicas.taken_ranks(state.nodes, names.WORKER_TYPE)
    missing = count - len(stay) - len(joining)
    places += [(rank, resize.resource) for rank in replicas.free_ranks(taken, missing)]
    added = state.nodes.new_nodes(names.WORKER_TYPE, places, now)
    stay = tuple(node for node in stay if node not in migrate)
    whole = state.versions.active.without(set(members) - set(stay))
    rest = [node for node in stay if node not in whole]
    return (*whole, *rest, *joining, *(node.id for node in added)), added


def _replace_broken_group(state: JobState, now: float) -> None:
    active, change = state.versions.active, state.versions.change
    if active is None or chief_succeeded(state):
        return
    in_place = bool(state.holders)
    if change is None or change.cause is ChangeCause.MEMBERSHIP:
        if not (state.gone_members or state.starts_from_damaged):
            return
    elif change.cause is not ChangeCause.RECOVERY or not change.in_place or in_place:
        return  # otherwise the last process that held the model has ended, too
    state.checkpoints = checkpoints.withdraw_request(state.checkpoints)
    state.versions = cluster_versions.begin_change(
        state.versions, ChangeCause.RECOVERY, active.members, in_place=in_place
    )
    if not in_place:
        version_steps.return_to_checkpoint(state, now)


def _abandon_admission(state: JobState) -> None:
    change, active = state.versions.change, state.versions.active
    if change is None or change.cause is not ChangeCause.MEMBERSHIP:
        return
    assert active is not None
    if state.lost_members(change.target) or _some_ended(state):
        give_up_newcomers(state, 0.0)


def _form_group(state: JobState, now: float) -> None:
    cause = _cause_of_next_group(state, now)
    if cause is None or not state.checked:
        return
    if now < state.volatile.lost_members.due(state.size, GROUP_SECONDS):
        return
    change = state.versions.change
    if change is not None and change.number and not state.lost_members(change.target):
        return  # the next group is being prepared
    members = rendezvous_verdict(state, now).members
    in_place = change.in_place if change is not None else bool(state.holders)
    if members is not None:
        state.versions = cluster_versions.begin_change(state.versions, cause, members, in_place=in_place)
        state.versions = cluster_versions.assign_number(state.versions, frozenset(state.joined))
    elif change is not None and change.number:
        # Too few of its members are left.
        state.versions = cluster_versions.begin_change(
            state.versions, cause, change.target, in_place=in_place
        )


def _note_lost_members(state: JobState, now: float) -> None:
    """Note how many members a broken group has lost: its survivors wait a moment for further losses."""
    change = state.versions.change
    broken = change is not None and change.cause is ChangeCause.RECOVERY
    lost = len(set(state.gone_members)) if broken else 0
    state.volatile.lost_members = state.volatile.lost_members.note_count(lost, now)


def _cause_of_next_group(state: JobState, now: float) -> ChangeCause | None:
    """Why a next group may be formed now; None if there is no reason, or if a plan or an admission is under
    way.
    """
    versions = state.versions
    if versions.change is not None:
        return None if versions.change.cause.orderly or chief_succeeded(state) else versions.change.cause
    if versions.active is None:
        return ChangeCause.INITIAL
    planned = state.plan is not None and not state.plan.phase.final
    if not versions.settled or planned or _some_ended(state) or now < state.volatile.newcomers_wait_until:
        return None
    return ChangeCause.MEMBERSHIP


def _activate_prepared(state: JobState, now: float) -> None:
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
    if change.in_place:
        version_steps.activate_version(state, None)
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
        state.volatile.missing_since = None
    elif state.volatile.missing_since is None:
        state.volatile.missing_since = now


def _some_ended(state: JobState) -> bool:
    """Whether a member has succeeded, so that the others are about to end."""
    world = state.world
    members = [state.nodes.find(names.WORKER_TYPE, node_id) for node_id in (world.members if world else ())]
    return any(node is not None and node.completed for node in members)


def chief_succeeded(state: JobState) -> bool:
    """Whether the chief has succeeded: the model is complete, whatever the other workers do."""
    return state.chief is not None and state.chief.completed
