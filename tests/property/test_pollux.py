"""What Pollux guarantees in addition to the contract of policies (`tests.property.test_policies`)."""

from collections.abc import Mapping
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edl_workflows.core.scaling.policy import JobInfo, NodeInfo
from edl_workflows.core.scaling.pollux.model import SHORTEST_FIRST, PolluxJob, PolluxOptions
from edl_workflows.core.scaling.pollux.optimizer import optimize_allocations
from edl_workflows.core.scaling.pollux.policy import PolluxPolicy
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable
from tests.pollux_worth import allocation_worth
from tests.property.test_policies import PolicyQuestion, few, pinned, questions

POLICIES = (PolluxPolicy(), PolluxPolicy(SHORTEST_FIRST))


@given(questions(), st.sampled_from(POLICIES))
@few
def test_spanning_jobs_share_no_node(question: PolicyQuestion, policy: PolluxPolicy) -> None:
    """A node has at most one job that spans several nodes, apart from jobs that may not be changed."""
    spanning: dict[str, list[str]] = {}
    for key, places in question.ask(policy).items():
        elastic = set(places[len(question.jobs[key].fixed) :])
        if len(elastic) > 1 and not pinned(question, key):
            for node in elastic:
                spanning.setdefault(node, []).append(key)

    assert all(len(keys) == 1 for keys in spanning.values())


@st.composite
def tables(draw: st.DrawFn) -> SpeedupTable:
    """Any speed-up table, including that of a job that gets slower."""
    speeds = st.lists(st.floats(0, 10), min_size=8, max_size=8)
    return SpeedupTable((0.0, *draw(speeds)), (0.0, *draw(speeds)))


@st.composite
def clusters(
    draw: st.DrawFn,
) -> tuple[list[PolluxJob], list[NodeInfo], Mapping[str, list[str]], PolluxOptions]:
    """Jobs with tables on nodes with GPUs, and any present allocations, including impossible ones."""
    found = [
        PolluxJob(
            JobInfo(
                f"job-{number}",
                {"gpu": 1.0},
                max_replicas=draw(st.integers(1, 8)),
                age=draw(st.floats(0, 9999)),
            ),
            draw(tables()),
            restarts=draw(st.integers(0, 9)),
            weight=draw(st.floats(0.1, 10)),
            remaining=draw(st.none() | st.floats(0, 1e6)),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    there = [NodeInfo(name, {"gpu": float(draw(st.integers(0, 4)))}) for name in ("a", "b", "c")]
    held = {job.info.key: draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=4)) for job in found}
    options = PolluxOptions(
        draw(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0])),
        draw(st.sampled_from([0.0, 30.0])),
        shortest_first=draw(st.booleans()),
    )
    return found, there, held, options


@pytest.mark.slow
@given(clusters())
def test_a_change_pays(
    cluster: tuple[list[PolluxJob], list[NodeInfo], dict[str, list[str]], PolluxOptions],
) -> None:
    """From a valid state, the new allocation is worth at least as much as the old one, including the cost of
    restarts, and is stable."""
    found, there, held, options = cluster
    first = optimize_allocations(found, there, held, options)
    waiting: dict[str, list[str]] = {job.info.key: [] for job in found}
    assert allocation_worth(found, there, waiting, first, options) >= allocation_worth(
        found, there, waiting, waiting, options
    )
    assert optimize_allocations(found, there, first, options) == first

    aged = [replace(job, info=replace(job.info, age=job.info.age + 60), restarts=0) for job in found]
    later = optimize_allocations(aged, there, first, options)
    assert allocation_worth(aged, there, first, later, options) >= allocation_worth(
        aged, there, first, first, options
    )


@given(clusters(), st.integers(1, 4))
@few
def test_a_node_more_does_no_harm(
    cluster: tuple[list[PolluxJob], list[NodeInfo], dict[str, list[str]], PolluxOptions], gpus: int
) -> None:
    """With one more node, the jobs together are not worse off than with their present allocation."""
    found, there, held, options = cluster
    first = optimize_allocations(found, there, held, options)
    more = [*there, NodeInfo("d", {"gpu": float(gpus)})]
    then = optimize_allocations(found, more, first, options)
    assert allocation_worth(found, more, first, then, options) >= allocation_worth(
        found, more, first, first, options
    )
