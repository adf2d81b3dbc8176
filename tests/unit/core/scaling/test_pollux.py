"""Pollux's optimizer and policy by example."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policy import JobInfo, NodeInfo
from edl_workflows.core.scaling.pollux.model import SHORTEST_FIRST, PolluxJob, PolluxOptions
from edl_workflows.core.scaling.pollux.optimizer import optimize_allocations
from edl_workflows.core.scaling.pollux.policy import PolluxPolicy
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable
from tests.pollux_worth import allocation_worth
from tests.unit.core.scaling.hints import HINTS

SCALING = SpeedupTable.linear(16)
SOME = SpeedupTable((0, 1, 1.8, 2.5, 3.1, *[3.1] * 12), (0, 1, 1.4, 1.7, 1.9, *[2.0] * 12))
"""Slower on several nodes."""
LESS = SpeedupTable(*[tuple(count**0.7 for count in range(17))] * 2)
"""Gains from each replica, but less than from the one before."""
NONE = SpeedupTable((0, *[1] * 16), (0, *[1] * 16))
"""Gains nothing from a second replica."""


def job(
    key: str, table: SpeedupTable = SCALING, low: int = 1, high: int = 16, *, age: float = 3600
) -> PolluxJob:
    """A job of one GPU a replica."""
    return PolluxJob(JobInfo(key, {"gpu": 1}, min_replicas=low, max_replicas=high, age=age), table)


def nodes(*gpus: int) -> list[NodeInfo]:
    """n0, n1, … with so many GPUs."""
    return [NodeInfo(f"n{number}", {"gpu": count}) for number, count in enumerate(gpus)]


def counts(answer: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Replicas of each."""
    return {key: len(places) for key, places in answer.items()}


def test_a_job_alone_gets_what_it_gains_from() -> None:
    """A single job gets all GPUs if each replica helps, and one if a second does not."""
    assert counts(optimize_allocations([job("a")], nodes(4, 4), {})) == {"a": 8}
    assert counts(optimize_allocations([job("a", NONE)], nodes(4, 4), {})) == {"a": 1}


def test_equals_share_equally() -> None:
    """Of four equal jobs on four nodes, each gets a node of its own."""
    answer = optimize_allocations([job(key, SOME) for key in "abcd"], nodes(4, 4, 4, 4), {})
    assert counts(answer) == {"a": 4, "b": 4, "c": 4, "d": 4}
    assert all(len(set(places)) == 1 for places in answer.values())


def test_replicas_go_where_they_help() -> None:
    """A job that gains nothing from more leaves them to one that does."""
    assert counts(optimize_allocations([job("a", NONE), job("b", SOME)], nodes(4, 1), {})) == {"a": 1, "b": 4}


def test_nobody_waits_while_there_is_room() -> None:
    """If there are as many jobs as GPUs, each has one, however well one of them would use two."""
    assert set(
        counts(optimize_allocations([job(f"job-{i}") for i in range(8)], nodes(4, 4), {})).values()
    ) == {1}


def test_the_oldest_are_first_where_not_all_fit() -> None:
    """Of three equal jobs on two GPUs, the oldest two run."""
    jobs = [job("a", age=10), job("b", age=30), job("c", age=20)]
    assert counts(optimize_allocations(jobs, nodes(2), {})) == {"a": 0, "b": 1, "c": 1}


def test_priority_comes_before_age() -> None:
    """A more important job takes the nodes of a running one."""
    young = job("b", age=1)
    important = replace(young, info=replace(young.info, priority=1))
    assert optimize_allocations([job("a"), important], nodes(1), {"a": ["n0"]}) == {"a": [], "b": ["n0"]}
    assert optimize_allocations([job("a"), young], nodes(1), {"a": ["n0"]}) == {"a": ["n0"], "b": []}


def test_weight_moves_replicas() -> None:
    """A job with a higher weight gets more replicas if both jobs want them."""
    answer = counts(optimize_allocations([job("a"), replace(job("b"), weight=9.0)], nodes(4, 4), {}))
    assert answer["b"] > answer["a"] > 0


def test_a_minimum_is_all_or_nothing() -> None:
    """A job that needs more than is left waits, and the rest goes to others."""
    assert counts(optimize_allocations([job("a", low=3), job("b", low=3)], nodes(4), {})) == {"a": 4, "b": 0}


def test_one_spanning_job_on_a_node() -> None:
    """Of two jobs of six replicas on three nodes of four GPUs, only one may span nodes, unless the option
    allows more."""
    jobs = [job("a", low=6, high=6), job("b", low=6, high=6)]
    assert sorted(counts(optimize_allocations(jobs, nodes(4, 4, 4), {})).values()) == [0, 6]
    free = PolluxOptions(avoid_interference=False)
    assert counts(optimize_allocations(jobs, nodes(4, 4, 4), {}, free)) == {"a": 6, "b": 6}


def test_jobs_that_span_one_node_are_parted() -> None:
    """If two jobs that span nodes share a node, only the older keeps its nodes, unless sharing is allowed."""
    held = {"a": ["n0"] * 4 + ["n1"] * 2, "b": ["n1"] * 2 + ["n2"] * 4}
    jobs = [job("a", low=6, high=6, age=7200), job("b", low=6, high=6)]
    assert optimize_allocations(jobs, nodes(4, 4, 4), held) == {"a": held["a"], "b": []}
    assert optimize_allocations(jobs, nodes(4, 4, 4), held, PolluxOptions(avoid_interference=False)) == held


def test_a_spanning_job_leaves_those_that_may_not_be_touched() -> None:
    """A job over several nodes does not move jobs that may not be touched, even where it already has
    replicas."""
    pinned = PolluxJob(JobInfo("a", {"gpu": 1}, preemptible=False), SCALING)
    held = {"a": ["n0", "n1"], "b": ["n1", "n2"]}
    answer = optimize_allocations([pinned, job("b", high=2)], nodes(2, 2, 2), held)
    assert answer["a"] == held["a"]
    assert answer["b"] == ["n2", "n2"]


def test_a_node_is_free_again_once_its_spanning_job_has_left() -> None:
    """When a job moves to a single node, another job may span the nodes that it leaves."""
    held = {"a": ["n0", "n1"], "b": []}
    jobs = [job("a", low=2, high=2, age=36000), job("b", low=4, high=4)]
    answer = optimize_allocations(jobs, nodes(2, 2, 2), held)
    assert sorted(set(answer["a"])) == ["n2"]
    assert sorted(answer["b"]) == ["n0", "n0", "n1", "n1"]


def test_what_may_not_be_touched_stays() -> None:
    """A job that is not preemptible keeps even invalid allocations, and counts as spanning nodes."""
    fixed = PolluxJob(JobInfo("a", {"gpu": 1}, max_replicas=1, preemptible=False), SCALING)
    answer = optimize_allocations([fixed, job("b")], nodes(4, 4), {"a": ["n1", "n0"]})
    assert answer["a"] == ["n1", "n0"]
    assert counts(answer)["b"] == 3


def test_a_young_job_is_not_moved_for_little() -> None:
    """An additional replica is worth a restart to an old job, but not to one that has just started."""
    held = {"a": ["n0"] * 4}
    table = SpeedupTable((0, 1, 2, 3, 4, 4.4), (0, 1, 2, 3, 4, 4.4))
    for age, expected in ((60.0, 4), (36000.0, 5)):
        assert counts(optimize_allocations([job("a", table, age=age)], nodes(4, 4), held)) == {"a": expected}


def test_many_restarts_bind() -> None:
    """A job that has lost most of its time by restarts keeps its nodes."""
    held = {"a": ["n0"]}
    restless = replace(job("a", age=300), restarts=10)
    assert optimize_allocations([restless], nodes(4), held) == held
    assert counts(optimize_allocations([replace(restless, restarts=1)], nodes(4), held)) == {"a": 4}


def left(key: str, hours: float, *, age: float = 3600) -> PolluxJob:
    """A job with so many hours of work for one replica, which gains from each, but from each less."""
    return replace(job(key, LESS, age=age), remaining=3600 * hours)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param(
            [left("a", 9), left("b", 1)], {"a": 1, "b": 7}, id="the-shorter-has-more-and-nobody-waits"
        ),
        pytest.param([left("a", 9), left("b", 9.1)], {"a": 4, "b": 4}, id="about-as-much-left"),
        pytest.param([job("a", LESS, age=9), left("b", 1)], {"a": 7, "b": 1}, id="unknown-is-as-much-as-was"),
    ],
)
def test_the_shortest_first(jobs: list[PolluxJob], expected: dict[str, int]) -> None:
    """The job with the least remaining work is first, whatever it gains. Every job has a replica, and the
    allocation does not change when it is repeated."""
    answer = optimize_allocations(jobs, nodes(4, 4), {}, SHORTEST_FIRST)
    assert counts(answer) == expected
    assert optimize_allocations(jobs, nodes(4, 4), answer, SHORTEST_FIRST) == answer


def test_the_longest_does_not_starve() -> None:
    """A long job waits for shorter ones at first. After a day it comes before younger jobs."""
    for age, expected in ((3600.0, "b"), (100 * 3600.0, "a")):
        found = counts(
            optimize_allocations([left("a", 999, age=age), left("b", 1)], nodes(1), {}, SHORTEST_FIRST)
        )
        assert [key for key, count in found.items() if count] == [expected]


def test_what_stays_is_as_it_was() -> None:
    """An allocation that does not change keeps the order of its nodes."""
    held = {"a": ["n1", "n0", "n1"]}
    assert optimize_allocations([job("a", low=3, high=3)], nodes(1, 2), held) == held


def test_a_lost_node_is_left() -> None:
    """A job on a node that no longer exists gets another allocation."""
    assert optimize_allocations([job("a", high=2)], nodes(4), {"a": ["gone", "n0"]}) == {"a": ["n0", "n0"]}


def test_a_closed_node_takes_nobody() -> None:
    """A cordoned node keeps its replicas and gets no new ones."""
    closed = [replace(nodes(4)[0], schedulable=False)]
    assert optimize_allocations([job("a")], closed, {}) == {"a": []}
    assert optimize_allocations([job("a", high=1)], closed, {"a": ["n0"]}) == {"a": ["n0"]}


def test_other_roles_come_first() -> None:
    """Replicas of fixed roles have the lowest ranks, and the job has nothing where they find no room."""
    learner = {"gpu": 2.0}
    info = JobInfo("a", {"cpu": 1.0}, fixed=(learner,), min_replicas=2, max_replicas=3)
    there = [NodeInfo("n0", {"cpu": 4.0}), NodeInfo("n1", {"gpu": 2.0, "cpu": 1.0})]
    assert optimize_allocations([PolluxJob(info, SCALING)], there, {}) == {"a": ["n1", "n0", "n0"]}
    assert optimize_allocations([PolluxJob(info, SCALING)], there[:1], {}) == {"a": []}


@pytest.mark.parametrize(
    ("case", "info"),
    [
        ("a demand that is no number", JobInfo("a", {"gpu": nan})),
        ("a negative demand", JobInfo("a", {"gpu": -1.0})),
        ("bounds in the wrong order", JobInfo("a", {"gpu": 1.0}, min_replicas=4, max_replicas=2)),
        ("more than any node has", JobInfo("a", {"gpu": 5.0})),
        ("what no node has", JobInfo("a", {"tpu": 1.0})),
    ],
)
def test_absurd_jobs_get_nothing(case: str, info: JobInfo) -> None:
    """Jobs with absurd values get nothing; the other jobs share all resources."""
    answer = optimize_allocations([PolluxJob(info, SCALING), job("b")], nodes(4), {})
    assert counts(answer) == {"a": 0, "b": 4}, case


def test_absurd_nodes_are_of_no_use() -> None:
    """Nodes with a negative number of GPUs, or with no number, get no replica."""
    bad = [NodeInfo("n1", {"gpu": -3.0}), NodeInfo("n2", {"gpu": nan})]
    assert optimize_allocations([job("a")], [*nodes(2), *bad], {}) == {"a": ["n0", "n0"]}


def test_an_absurd_age_is_none() -> None:
    """A job whose age is negative or not a number gets replicas like others."""
    assert counts(optimize_allocations([job("a", age=nan), job("b", age=-5)], nodes(2), {})) == {
        "a": 1,
        "b": 1,
    }


def test_nothing_to_do() -> None:
    """Without jobs or without nodes there is nothing to allocate."""
    assert optimize_allocations([], nodes(4), {}) == {}
    assert optimize_allocations([job("a")], [], {}) == {"a": []}


def test_a_table_of_nothing_still_starts() -> None:
    """A job whose model allows no batch gets its minimum and does not wait for ever."""
    assert counts(optimize_allocations([job("a", SpeedupTable((0, 0, 0), (0, 0, 0)))], nodes(4), {})) == {
        "a": 1
    }


@pytest.mark.parametrize("change", [{"weight": 0.0}, {"weight": nan}, {"restarts": -1}])
def test_absurd_weights_are_refused(change: dict[str, Any]) -> None:
    """The error for an absurd weight names the job."""
    with pytest.raises(InvalidError, match=r"^a: "):
        replace(job("a"), **change)


@pytest.mark.parametrize("change", [{"fairness": 2.0}, {"fairness": nan}, {"restart_seconds": -1.0}])
def test_absurd_options_are_refused(change: dict[str, Any]) -> None:
    """The error for an absurd option names it."""
    with pytest.raises(InvalidError, match=next(iter(change))):
        PolluxOptions(**change)


def test_worth_by_hand() -> None:
    """The worth is the paper's mean: minus the sum of 1 / speed-up by the fair share, which is 2 replicas
    each of 4."""
    allocations = {"a": ["n0"], "b": ["n0", "n0", "n0"]}
    expected = -1 / (1 / 2 + 1e-3) - 1 / (3 / 2 + 1e-3)
    assert allocation_worth([job("a"), job("b")], nodes(4), {}, allocations) == pytest.approx(expected)
    restarted = -1 / (1 / 2 * 3600 / 3630 + 1e-3) - 1 / (3 / 2 + 1e-3)
    before = {"a": ["n0", "n0"], "b": ["n0", "n0", "n0"]}
    assert allocation_worth([job("a"), job("b")], nodes(4), before, allocations) == pytest.approx(restarted)


def reporting(key: str, hints: Mapping[str, Any], low: int = 1, high: int = 8) -> JobInfo:
    """A job that has reported this."""
    return JobInfo(key, {"gpu": 1}, min_replicas=low, max_replicas=high, age=3600, profilings=hints)


def asked(*jobs: JobInfo, held: Mapping[str, list[str]] | None = None) -> dict[str, int]:
    """What they get of two nodes with four GPUs."""
    answer = PolluxPolicy().optimize(
        {one.key: one for one in jobs}, {node.key: node for node in nodes(4, 4)}, held or {}
    )
    return counts(answer)


@pytest.mark.parametrize(
    ("case", "hints", "low", "expected"),
    [
        ("nothing reported: the minimum", {}, 2, 2),
        (
            "nonsense reported: the minimum",
            HINTS | {"perfParams": {"gamma": "fast"}, "maxProfiledReplicas": -1},
            1,
            1,
        ),
        ("twice what was measured", HINTS, 1, 4),
        ("the maximum", HINTS | {"maxProfiledReplicas": 64}, 1, 8),
        ("without a model, twice what was measured", {"maxProfiledReplicas": 3}, 1, 6),
    ],
)
def test_growth_follows_reports(case: str, hints: Mapping[str, Any], low: int, expected: int) -> None:
    """A job gets at most twice the replicas with which it was measured."""
    assert asked(reporting("a", hints, low)) == {"a": expected}, case


def test_a_change_of_policy_takes_nothing() -> None:
    """A job that has more than its share keeps it as long as no other job needs it."""
    assert asked(reporting("a", {}), held={"a": ["n0"] * 3}) == {"a": 3}


def test_allocate_is_optimize_for_one() -> None:
    """A new job gets its minimum on one node, if one has room."""
    there = {node.key: node for node in nodes(1, 3)}
    assert PolluxPolicy().allocate(reporting("a", {}, low=2), there) == ["n1", "n1"]
