"""The guarantees of the policy contract, for every live policy and any jobs, nodes and reports."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from edl_workflows.core.scaling.policies import POLICIES
from edl_workflows.core.scaling.policy import Allocation, JobInfo, NodeInfo, Policy
from tests.unit.core.scaling.hints import HINTS

NODES = ("a", "b", "c", "d")
each_policy = pytest.mark.parametrize(
    "policy", [pytest.param(entry.load(), id=entry.name) for entry in POLICIES]
)
few = settings(max_examples=50)
"""So many for each policy keep the whole file within some seconds of CPU time."""

DEMANDS = st.fixed_dictionaries({"cpu": st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 3.0])}).flatmap(
    lambda cpu: st.sampled_from([cpu, cpu | {"gpu": 1.0}])
)


@st.composite
def jobs(draw: st.DrawFn, key: str) -> JobInfo:
    fixed = tuple(draw(st.lists(DEMANDS, max_size=2)))
    low = draw(st.integers(1, 3))
    return JobInfo(
        key=key,
        resources=draw(DEMANDS),
        fixed=fixed,
        min_replicas=len(fixed) + low,
        max_replicas=len(fixed) + low + draw(st.integers(0, 3)),
        preemptible=draw(st.sampled_from([True, True, True, False])),
        priority=draw(st.integers(0, 1)),
        age=draw(st.sampled_from([0.0, 10.0, 20.0])),
        excluded=draw(st.frozensets(st.sampled_from(NODES), max_size=1)),
    )


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, NodeInfo]:
    keys = draw(st.lists(st.sampled_from(NODES), unique=True))
    amounts = st.fixed_dictionaries(
        {"cpu": st.sampled_from([-1.0, 0.0, 1.0, 2.5, 4.0, 8.0]), "gpu": st.sampled_from([0.0, 1.0, 4.0])}
    )
    open_ = st.sampled_from([True, True, True, False])
    return {key: NodeInfo(key, draw(amounts), draw(open_)) for key in keys}


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
class PolicyQuestion:
    """The input of a policy."""

    jobs: dict[str, JobInfo]
    nodes: dict[str, NodeInfo]
    previous: dict[str, list[str]]

    def ask(self, policy: Policy) -> dict[str, list[str]]:
        return policy.optimize(self.jobs, self.nodes, self.previous)


@st.composite
def questions(draw: st.DrawFn) -> PolicyQuestion:
    """Any jobs, with their own reports or those of their scenario, and any present allocations, valid or
    not."""
    former = draw(st.lists(REPORTS, max_size=3))
    found = {}
    for key in [f"job-{number}" for number in range(draw(st.integers(0, 5)))]:
        known: dict[str, Any] = {"scenario": "walk", "reported": former} if draw(st.booleans()) else {}
        found[key] = replace(draw(jobs(key)), profilings=draw(REPORTS), **known)
    held = st.lists(st.sampled_from([*NODES, "gone"]), max_size=7)
    return PolicyQuestion(found, draw(nodes()), {key: draw(held) for key in found})


def pinned(question: PolicyQuestion, key: str) -> bool:
    return not question.jobs[key].preemptible and bool(question.previous[key])


def used(question: PolicyQuestion, answer: Mapping[str, Allocation], node: str, resource: str) -> float:
    return sum(
        question.jobs[key].demand(rank).get(resource, 0.0)
        for key, places in answer.items()
        for rank, place in enumerate(places)
        if place == node
    )


@each_policy
@given(questions())
@settings(max_examples=100)
def test_an_answer_keeps_the_contract(policy: Policy, question: PolicyQuestion) -> None:
    """The answer names exactly the jobs in the question; nodes, bounds and closed nodes are respected."""
    answer = question.ask(policy)
    assert answer.keys() == question.jobs.keys()
    assert_nodes_suffice(question, answer)
    assert_bounds_are_kept(question, answer)
    assert_closed_nodes_get_nothing_new(question, answer)


def assert_nodes_suffice(question: PolicyQuestion, answer: Mapping[str, Allocation]) -> None:
    """Replicas fit into the free resources of a node, except those of jobs that may not be changed."""
    untouchable = {key: places for key, places in answer.items() if pinned(question, key)}
    for key, node in question.nodes.items():
        for resource, free in node.free.items():
            taken = used(question, answer, key, resource)
            assert taken <= max(free, used(question, untouchable, key, resource), 0.0) + 1e-4


def assert_bounds_are_kept(question: PolicyQuestion, answer: Mapping[str, Allocation]) -> None:
    """A job has nothing, or between its minimum and its maximum, on nodes that exist.

    A job that is not preemptible keeps what it holds, whatever that is.
    """
    for key, places in answer.items():
        job = question.jobs[key]
        if pinned(question, key):
            assert places == question.previous[key]
            continue
        assert not places or job.min_replicas <= len(places) <= job.max_replicas
        assert set(places) <= set(question.nodes)


def assert_closed_nodes_get_nothing_new(question: PolicyQuestion, answer: Mapping[str, Allocation]) -> None:
    """On a cordoned or excluded node, a job has at most what it had there before."""
    for key, places in answer.items():
        for node in question.nodes.values():
            if not node.schedulable or node.key in question.jobs[key].excluded:
                assert places.count(node.key) <= question.previous[key].count(node.key)


@each_policy
@given(questions())
@example(
    PolicyQuestion(
        {"a": JobInfo("a", {"cpu": 1.0}, fixed=({"cpu": 2.0},), min_replicas=2, max_replicas=2)},
        {"a": NodeInfo("a", {"cpu": 1.0}), "b": NodeInfo("b", {"cpu": 2.0})},
        {"a": ["gone", "b"]},
    )
).via("a fixed replica is lost, and only the node of the other one has room for it")
def test_an_answer_is_a_fixed_point(policy: Policy, question: PolicyQuestion) -> None:
    """If the jobs hold what a policy allocated, the policy changes nothing."""
    answer = question.ask(policy)
    assert replace(question, previous=answer).ask(policy) == answer


@each_policy
@given(questions(), st.randoms(use_true_random=False))
@few
def test_the_same_question_has_the_same_answer(
    policy: Policy, question: PolicyQuestion, random: Random
) -> None:
    """The answer depends neither on earlier questions nor on the order of jobs and nodes."""
    keys, names = list(question.jobs), list(question.nodes)
    random.shuffle(keys)
    random.shuffle(names)
    shuffled = PolicyQuestion(
        {key: question.jobs[key] for key in keys},
        {name: question.nodes[name] for name in names},
        {key: question.previous[key] for key in keys},
    )
    assert shuffled.ask(policy) == question.ask(policy)


@each_policy
@given(jobs("new"), nodes(), REPORTS, st.lists(REPORTS, max_size=2))
@few
@example(
    JobInfo("new", {"cpu": 0.0}, max_replicas=4, age=20.0),
    {"a": NodeInfo("a", {"cpu": 8.0})},
    HINTS | {"maxProfiledReplicas": 0},
    [HINTS],
).via("a job of the scenario before it was measured with more replicas")
def test_a_first_allocation_is_kept(
    policy: Policy,
    job: JobInfo,
    free: dict[str, NodeInfo],
    report: dict[str, object],
    former: list[dict[str, object]],
) -> None:
    """The result of `allocate` for a new job keeps the guarantees too, and the next `optimize` does not
    change it."""
    job = replace(job, profilings=report, scenario="walk", reported=former)
    first = policy.allocate(job, free)
    assert not first or job.min_replicas <= len(first) <= job.max_replicas
    assert not first or policy.optimize({"new": job}, free, {"new": first}) == {"new": first}
