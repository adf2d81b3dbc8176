"""Members of a large group that are lost at once are answered with one group and one request for pods."""

import pytest

from edl_workflows.core.protocol.nodes import ExitReport, NodeRef, ProcessReport, ProcessState, Registration
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.loss_batch import LEAST_NODES, LossBatch
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, RoleSettings
from edl_workflows.services.master.state.transitions import settle_job

BEGIN = 1000.0
MEMBERS = 128
LOST = 38


def worker(node: int) -> NodeRef:
    return NodeRef(type="worker", id=node)


def train(state: JobState, version: int, state_name: ProcessState) -> None:
    """All members report this."""
    for member in state.nodes.live("worker"):
        report = ProcessReport(node=member.ref, version=version, state=state_name, in_place=True)
        messages.record_process_report(state, report)


def trained_group(members: int) -> JobState:
    """A collective job whose members train in place in version 1."""
    settings = JobSettings(
        "big",
        "default",
        {"worker": RoleSettings(replicas=members, restart_always=True)},
        collective=True,
        rendezvous=RendezvousLimits(min_nodes=members // 2, max_nodes=members),
    )
    state = JobState(settings, watches_pods=True)
    settle_job(state, BEGIN)
    for node in range(members):
        messages.register_node(state, Registration(node=worker(node), rank=node, incarnation="a"), BEGIN)
    settle_job(state, BEGIN)
    train(state, 1, ProcessState.READY)
    settle_job(state, BEGIN)
    train(state, 1, ProcessState.TRAINING)
    settle_job(state, BEGIN)
    assert state.versions.settled
    return state


def lose(state: JobState, nodes: range, since: float, pause: float) -> float:
    """Report the ends of members one after the other, and derive the consequences of each; return when the
    last one was reported."""
    for number, node in enumerate(nodes):
        report = ExitReport(node=worker(node), incarnation="a", version=1, code=1)
        messages.record_death_report(state, report)
        settle_job(state, since + number * pause)
    return since + (len(nodes) - 1) * pause


def test_losses_within_a_moment_are_answered_once() -> None:
    """A third of a group is lost within a second: the survivors leave the group at once, then form one next
    group, and one request asks for all replacements."""
    state = trained_group(MEMBERS)
    version, requests = state.versions.last_number, state.pod_plans.last_number
    now = lose(state, range(1, LOST + 1), BEGIN + 10, 0.01)
    assert state.versions.last_number == version
    assert state.versions.change is not None
    assert state.versions.change.in_place

    while (due := state.losses_due(now)) is not None:
        now = due
        settle_job(state, now)

    assert state.versions.active is not None
    assert state.versions.active.members == (0, *range(LOST + 1, MEMBERS))
    assert state.versions.last_number == version + 1
    assert state.pod_plans.last_number == requests + 1
    assert len(state.pod_plans.open[-1].create) == LOST


def test_a_small_group_waits_for_no_further_loss() -> None:
    """The survivors of a small group go on as soon as a loss is reported."""
    members = LEAST_NODES - 1
    state = trained_group(members)
    lose(state, range(1, 2), BEGIN + 10, 0.0)
    assert state.versions.active is not None
    assert len(state.versions.active.members) == members - 1
    assert state.losses_due(BEGIN + 10) is None


def test_losses_that_never_end_are_answered_all_the_same() -> None:
    """After a bounded time the survivors go on, although members are still being lost."""
    batch, now = LossBatch(), BEGIN
    for count in range(1, 1000):
        now = BEGIN + count * 0.9
        batch = batch.note_count(count, now)
        if now >= batch.due(1000, 0.0):
            break
    assert now - BEGIN == pytest.approx(6.3)


def test_a_batch_ends_when_no_loss_is_left() -> None:
    """The next loss is the first of another batch."""
    batch = LossBatch().note_count(1, BEGIN).note_count(0, BEGIN + 1).note_count(1, BEGIN + 5)
    assert batch == LossBatch(1, BEGIN + 5, BEGIN + 5)
