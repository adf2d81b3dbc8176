"""Laws of the rendezvous, whichever nodes join and leave in whatever order."""

from dataclasses import replace
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from edl_workflows.core.protocol.nodes import NodeRef, Registration
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits
from edl_workflows.services.master.state.versions.rendezvous import (
    WaitingWorkers,
    next_group,
    rendezvous_verdict,
    round_to_units,
)
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob

NOW = 1_000.0


@st.composite
def parameters(draw: st.DrawFn) -> RendezvousLimits:
    """Any parameters that a job may have."""
    least = draw(st.integers(1, 4))
    return RendezvousLimits(least, draw(st.integers(least, 8)), draw(st.integers(1, 4)), waiting_timeout=30.0)


@st.composite
def situations(draw: st.DrawFn) -> WaitingWorkers:
    """Any nodes may have joined, and any member of the present world may be gone."""
    ids = draw(st.lists(st.integers(0, 11), unique=True, max_size=12))
    present = tuple(ids[: draw(st.integers(0, len(ids)))])
    lost = draw(st.sets(st.sampled_from(ids))) if ids else set()
    times = {node: NOW - draw(st.integers(0, 60)) for node in ids if node not in lost}
    intact = draw(st.booleans()) and bool(present) and not lost.intersection(present)
    return WaitingWorkers(present, intact, times, draw(st.integers(0, 10)))


@pytest.mark.slow
@given(situations(), parameters())
def test_a_world_is_made_of_those_who_joined_and_within_bounds(
    waiting: WaitingWorkers, job: RendezvousLimits
) -> None:
    """Ranks are a permutation of nodes that have joined, and their number is within the bounds of the job."""
    members = next_group(waiting, job, NOW).members
    assume(members is not None)
    assert members is not None
    assert len(set(members)) == len(members)
    assert set(members) <= set(waiting.joined)
    assert job.min_nodes <= len(members) <= max(job.min_nodes, min(waiting.desired, job.max_nodes))
    assert len(members) % job.node_unit == 0 or len(members) == job.min_nodes


@given(situations(), parameters())
def test_the_oldest_is_rank_0(waiting: WaitingWorkers, job: RendezvousLimits) -> None:
    """Survivors keep their order and come before all newcomers, which are ordered by the time they joined."""
    members = next_group(waiting, job, NOW).members or ()
    survivors = [node for node in waiting.present if node in waiting.joined]
    assert list(members[: len(survivors)]) == survivors[: len(members)]
    times = [waiting.joined[node] for node in members[len(survivors) :]]
    assert times == sorted(times)


@given(situations(), parameters(), st.randoms(use_true_random=False))
def test_the_order_in_which_news_came_does_not_matter(
    waiting: WaitingWorkers, job: RendezvousLimits, random: Random
) -> None:
    """Joins that are reported in another order give the same verdict."""
    told = list(waiting.joined.items())
    random.shuffle(told)
    assert next_group(replace(waiting, joined=dict(told)), job, NOW) == next_group(waiting, job, NOW)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=20), parameters())
def test_a_join_that_is_reported_again_changes_nothing(
    reports: list[tuple[int, int]], limits: RendezvousLimits
) -> None:
    """An agent that registers again joined when it first did, so the master's verdict is that of the first
    reports alone."""

    def told(reports: list[tuple[int, int]]) -> JobState:
        settings = JobSettings("job", "default", parse_nodes("worker=6"), collective=True, rendezvous=limits)
        state = SimulatedCollectiveJob(settings).state
        for node, seconds in reports:
            agent = NodeRef(type="worker", id=node)
            registration = Registration(node=agent, rank=node, incarnation=f"worker{node}")
            messages.register_node(state, registration, NOW + seconds)
        return state

    first = dict(reversed(reports))  # of each node, as the last one of equal keys counts
    once, again = told(list(first.items())), told(reports)
    assert again.joined == {node: NOW + seconds for node, seconds in first.items()}
    for now in (NOW + 20, NOW + 60):
        assert rendezvous_verdict(again, now) == rendezvous_verdict(once, now)


@given(situations(), parameters())
def test_a_world_that_was_made_is_not_made_again(waiting: WaitingWorkers, job: RendezvousLimits) -> None:
    """After the group has formed, there is nothing to do until a node joins or leaves."""
    members = next_group(waiting, job, NOW).members
    assume(members is not None)
    assert members is not None
    made = replace(waiting, present=members, intact=True)
    assert next_group(made, job, NOW).members is None
    assert next_group(made, job, NOW + 1_000).members is None


@given(situations(), parameters())
def test_waiting_ends(waiting: WaitingWorkers, job: RendezvousLimits) -> None:
    """If the verdict has a deadline, a group forms then. Otherwise only an event can change the verdict."""
    verdict = next_group(waiting, job, NOW)
    assume(verdict.members is None)
    if verdict.until is not None:
        assert verdict.until > NOW
        assert next_group(waiting, job, verdict.until).members is not None
    else:
        assert next_group(waiting, job, NOW + 1_000_000).members is None


@given(situations(), parameters())
def test_nobody_waits_who_could_train(waiting: WaitingWorkers, job: RendezvousLimits) -> None:
    """After the waiting time, a new group forms unless too few nodes have joined or the present group already
    has the largest allowed size."""
    verdict = next_group(waiting, job, NOW + 1_000)
    size = round_to_units(
        min(len(waiting.joined), max(job.min_nodes, min(waiting.desired, job.max_nodes))), job
    )
    unchanged = waiting.intact and len(waiting.present) == size
    assert (verdict.members is None) == (len(waiting.joined) < job.min_nodes or unchanged)


@given(situations(), parameters())
def test_survivors_go_on_at_once(waiting: WaitingWorkers, job: RendezvousLimits) -> None:
    """If enough members of a lost group survive, they do not wait for others."""
    survivors = [node for node in waiting.present if node in waiting.joined]
    assume(survivors)
    broken = replace(waiting, intact=False)
    enough = replace(job, min_nodes=min(job.min_nodes, len(survivors)))
    assert next_group(broken, enough, NOW).members is not None


@given(st.integers(0, 20), parameters())
def test_units_never_round_below_the_minimum(count: int, job: RendezvousLimits) -> None:
    """If there are enough nodes for the minimum, a group can form, whatever the unit is."""
    size = round_to_units(count, job)
    assert (size >= job.min_nodes) == (count >= job.min_nodes)
    assert size <= count
