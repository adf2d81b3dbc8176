"""Laws of first-fit, for any jobs on any nodes, whatever they hold."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from edl_workflows.scaling.first_fit import FirstFitPolicy
from edl_workflows.scaling.policy import Allocation, JobInfo, NodeInfo

POLICY = FirstFitPolicy()
NODES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Question:
    """What is put to the policy."""

    jobs: dict[str, JobInfo]
    nodes: dict[str, NodeInfo]
    previous: dict[str, list[str]]

    def answer(self) -> dict[str, list[str]]:
        return POLICY.optimize(self.jobs, self.nodes, self.previous)


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


@st.composite
def questions(draw: st.DrawFn) -> Question:
    found = {f"job-{i}": draw(jobs(f"job-{i}")) for i in range(draw(st.integers(0, 5)))}
    held = st.lists(st.sampled_from([*NODES, "gone"]), max_size=7)
    return Question(found, draw(nodes()), {key: draw(held) for key in found})


def pinned(question: Question, key: str) -> bool:
    return not question.jobs[key].preemptible and bool(question.previous[key])


def used(question: Question, answer: Mapping[str, Allocation], node: str, resource: str) -> float:
    return sum(
        question.jobs[key].demand(rank).get(resource, 0.0)
        for key, places in answer.items()
        for rank, place in enumerate(places)
        if place == node
    )


@given(questions())
def test_nothing_is_given_twice(question: Question) -> None:
    """No node has more replicas than its room, but for what jobs hold that may not be touched."""
    answer = question.answer()
    untouchable = {key: places for key, places in answer.items() if pinned(question, key)}
    for key, node in question.nodes.items():
        for resource, free in node.free.items():
            taken = used(question, answer, key, resource)
            assert taken <= max(free, used(question, untouchable, key, resource), 0.0) + 1e-4


@given(questions())
def test_bounds_are_kept(question: Question) -> None:
    """A job has nothing, or between its minimum and its maximum, on nodes that are there; or what it may keep."""
    for key, places in question.answer().items():
        job = question.jobs[key]
        if pinned(question, key):
            assert places == question.previous[key]
            continue
        assert not places or job.min_replicas <= len(places) <= job.max_replicas
        assert set(places) <= set(question.nodes)


@given(questions())
@settings(max_examples=200)
def test_its_answer_is_a_fixed_point(question: Question) -> None:
    """Asked again with its own answer as what is held, it changes nothing."""
    answer = question.answer()
    assert replace(question, previous=answer).answer() == answer


@given(questions(), st.randoms(use_true_random=False))
def test_order_does_not_matter(question: Question, random: Random) -> None:
    """Jobs and nodes in any order of the maps have the same answer."""
    keys, names = list(question.jobs), list(question.nodes)
    random.shuffle(keys)
    random.shuffle(names)
    shuffled = Question(
        {key: question.jobs[key] for key in keys},
        {name: question.nodes[name] for name in names},
        {key: question.previous[key] for key in keys},
    )
    assert shuffled.answer() == question.answer()


@given(questions())
def test_no_new_replica_on_a_closed_node(question: Question) -> None:
    """A node that takes no new replicas, or is excluded, keeps at most what the job had there."""
    for key, places in question.answer().items():
        for node in question.nodes.values():
            if not node.schedulable or node.key in question.jobs[key].excluded:
                assert places.count(node.key) <= question.previous[key].count(node.key)


@given(questions())
def test_no_job_waits_behind_a_less_important_one(question: Question) -> None:
    """A job that has nothing finds no room for its minimum, even if all less important jobs and all beyond the others'
    minima made room."""
    answer = question.answer()
    for key, places in answer.items():
        job = question.jobs[key]
        if places:
            continue
        free = {
            name: NodeInfo(
                name,
                {
                    resource: amount
                    - sum(
                        other.demand(rank).get(resource, 0.0)
                        for other in question.jobs.values()
                        if other.priority >= job.priority or pinned(question, other.key)
                        for rank, place in enumerate(answer[other.key])
                        if place == name and (rank < other.min_replicas or pinned(question, other.key))
                    )
                    for resource, amount in node.free.items()
                },
                node.schedulable,
            )
            for name, node in question.nodes.items()
        }
        assert POLICY.allocate(replace(job, max_replicas=job.min_replicas), free) == []


@given(jobs("new"), nodes())
def test_a_first_allocation_is_kept(job: JobInfo, free: dict[str, NodeInfo]) -> None:
    """What a new job gets is what it has after the next look at all jobs."""
    first = POLICY.allocate(job, free)
    question = Question({"new": job}, free, {"new": first})
    assert not first or question.answer() == {"new": first}
