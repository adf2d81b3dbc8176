"""Laws of Pollux's policy, for any jobs on any nodes, whatever they hold and report."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from edl_workflows.scaling.policy import JobInfo, NodeInfo
from edl_workflows.scaling.pollux.model import SHORTEST_FIRST, PolluxJob, PolluxOptions
from edl_workflows.scaling.pollux.optimizer import allocation_worth, optimize_allocations
from edl_workflows.scaling.pollux.policy import PolluxPolicy
from edl_workflows.scaling.pollux.speedup import SpeedupTable
from tests.property.test_fit_policy import Question, jobs, nodes, pinned, questions, used
from tests.unit.scaling.hints import HINTS

POLICIES = (PolluxPolicy(), PolluxPolicy(SHORTEST_FIRST))
few = settings(max_examples=50)
"""As many examples as keep the whole file within some seconds."""
AMOUNTS = st.floats(0) | st.sampled_from([0.0, 5e-324, 1e-9, 1e9, 1e100, 1.7e308])
REPORTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.builds(
        lambda count, left: HINTS | {"maxProfiledReplicas": count, "remainingSamples": left},
        st.integers(0, 5),
        st.none() | st.integers(0, 10**9),
    ),
    st.builds(
        lambda times, noise, batch: HINTS | {"perfParams": times, "gradParams": noise, "maxBatchSize": batch},
        st.fixed_dictionaries(dict.fromkeys(HINTS["perfParams"], AMOUNTS) | {"gamma": st.floats(1, 10)}),
        st.fixed_dictionaries({"norm": AMOUNTS, "var": AMOUNTS}),
        st.integers(1, 10**400),
    ),
    st.dictionaries(
        st.sampled_from([*HINTS, "remainingSamples"]),
        st.one_of(
            st.none(), st.floats(), st.text(max_size=3), st.lists(st.integers()), st.just({"gamma": -1})
        ),
    ),
)


@dataclass(frozen=True)
class Asked(Question):
    """A question, and the policy that is asked."""

    policy: PolluxPolicy


@st.composite
def reported(draw: st.DrawFn) -> Asked:
    """A question whose jobs, or others of their scenario, have reported something."""
    question = draw(questions())
    former = draw(st.lists(REPORTS, max_size=3))
    known: dict[str, Any] = {"scenario": "walk", "reported": former}
    found = {
        key: replace(job, profilings=draw(REPORTS), **(known if draw(st.booleans()) else {}))
        for key, job in question.jobs.items()
    }
    return Asked(found, question.nodes, question.previous, draw(st.sampled_from(POLICIES)))


def answered(question: Asked) -> dict[str, list[str]]:
    return question.policy.optimize(question.jobs, question.nodes, question.previous)


@given(reported())
@few
def test_nothing_is_given_twice(question: Asked) -> None:
    """No node has more replicas than its room, but for what jobs hold that may not be touched."""
    answer = answered(question)
    untouchable = {key: places for key, places in answer.items() if pinned(question, key)}
    for key, node in question.nodes.items():
        for resource, free in node.free.items():
            taken = used(question, answer, key, resource)
            assert taken <= max(free, used(question, untouchable, key, resource), 0.0) + 1e-4


@given(reported())
@few
def test_bounds_are_kept(question: Asked) -> None:
    """A job has nothing, or between its minimum and its maximum, on nodes that are there; or what it may keep."""
    for key, places in answered(question).items():
        job = question.jobs[key]
        if pinned(question, key):
            assert places == question.previous[key]
            continue
        assert not places or job.min_replicas <= len(places) <= job.max_replicas
        assert set(places) <= set(question.nodes)


@given(reported())
def test_its_answer_is_a_fixed_point(question: Asked) -> None:
    """Asked again with its own answer as what is held, it changes nothing."""
    answer = answered(question)
    assert answered(replace(question, previous=answer)) == answer


@given(reported(), st.randoms(use_true_random=False))
@few
def test_order_does_not_matter(question: Asked, random: Random) -> None:
    """Jobs and nodes in any order of the maps have the same answer."""
    keys, names = list(question.jobs), list(question.nodes)
    random.shuffle(keys)
    random.shuffle(names)
    shuffled = Asked(
        {key: question.jobs[key] for key in keys},
        {name: question.nodes[name] for name in names},
        {key: question.previous[key] for key in keys},
        question.policy,
    )
    assert answered(shuffled) == answered(question)


@given(reported())
@few
def test_no_new_replica_on_a_closed_node(question: Asked) -> None:
    """A node that takes no new replicas, or is excluded, keeps at most what the job had there."""
    for key, places in answered(question).items():
        for node in question.nodes.values():
            if not node.schedulable or node.key in question.jobs[key].excluded:
                assert places.count(node.key) <= question.previous[key].count(node.key)


@given(reported())
@few
def test_spanning_jobs_share_no_node(question: Asked) -> None:
    """At most one job with replicas of its elastic role on several nodes is on a node, beside those left alone."""
    spanning: dict[str, list[str]] = {}
    for key, places in answered(question).items():
        elastic = set(places[len(question.jobs[key].fixed) :])
        if len(elastic) > 1 and not pinned(question, key):
            for node in elastic:
                spanning.setdefault(node, []).append(key)

    assert all(len(keys) == 1 for keys in spanning.values())


@given(jobs("new"), nodes(), REPORTS, st.lists(REPORTS, max_size=2), st.sampled_from(POLICIES))
@few
def test_a_first_allocation_is_kept(
    job: JobInfo,
    free: dict[str, NodeInfo],
    report: dict[str, object],
    former: list[dict[str, object]],
    policy: PolluxPolicy,
) -> None:
    """What a new job gets is what it has after the next look at all jobs."""
    job = replace(job, profilings=report, scenario="walk", reported=former)
    first = policy.allocate(job, free)
    assert not first or policy.optimize({"new": job}, free, {"new": first}) == {"new": first}


@st.composite
def tables(draw: st.DrawFn) -> SpeedupTable:
    """Any table, also of a job that gets slower."""
    speeds = st.lists(st.floats(0, 10), min_size=8, max_size=8)
    return SpeedupTable((0.0, *draw(speeds)), (0.0, *draw(speeds)))


@st.composite
def clusters(
    draw: st.DrawFn,
) -> tuple[list[PolluxJob], list[NodeInfo], Mapping[str, list[str]], PolluxOptions]:
    """Jobs with tables on nodes with GPUs, and what they hold: any, also what can't be."""
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


@given(clusters())
def test_a_change_pays(
    cluster: tuple[list[PolluxJob], list[NodeInfo], dict[str, list[str]], PolluxOptions],
) -> None:
    """From a state that is allowed, the answer is worth at least as much, restarts counted; and it stands."""
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
    """With what it had before, and a node more, the jobs together are not worse off."""
    found, there, held, options = cluster
    first = optimize_allocations(found, there, held, options)
    more = [*there, NodeInfo("d", {"gpu": float(gpus)})]
    then = optimize_allocations(found, more, first, options)
    assert allocation_worth(found, more, first, then, options) >= allocation_worth(
        found, more, first, first, options
    )
