"""The fulfilment algorithm by example."""

import math
from dataclasses import replace

import pytest

from edl_workflows.core.scaling.paddle.fulfilment import FulfilmentDecision, FulfilmentJob, decide_fulfilment
from edl_workflows.core.scaling.paddle.nodes import FulfilmentNode

GI = 2.0**30
GPU = "nvidia.com/gpu"
ALL = {"cpu": 1.0, "memory": 1.0}
"""Limits that let everything be used, for round numbers."""


def job(low: int, high: int, *places: str, told: int | None = None, **requests: float) -> FulfilmentJob:
    """A job of one core an instance, if nothing else is said, with an instance on each of these nodes."""
    asked = {GPU if name == "gpu" else name: amount for name, amount in (requests or {"cpu": 1.0}).items()}
    return FulfilmentJob(asked, low, high, len(places) if told is None else told, places)


def nodes(**cores: float) -> dict[str, FulfilmentNode]:
    """Nodes with so many cores, and enough memory."""
    return {key: FulfilmentNode({"cpu": amount, "memory": 64 * GI}) for key, amount in cores.items()}


def after(decision: FulfilmentDecision, *keys: str) -> list[int | None]:
    """The new numbers of some jobs; None for a job that keeps its own."""
    return [decision.changes[key].after if key in decision.changes else None for key in keys]


@pytest.mark.parametrize(
    ("low", "high", "elastic"), [(2, 6, True), (0, 1, True), (2, 2, False), (0, 0, False)]
)
def test_elastic(low: int, high: int, elastic: bool) -> None:
    """A job is elastic if its minimum is below its maximum. The design document says the opposite."""
    assert job(low, high).elastic is elastic


@pytest.mark.parametrize(
    ("low", "high", "instances", "score"),
    [
        (2, 6, 2, 0.0),
        (2, 6, 4, 0.5),
        (2, 6, 6, 1.0),
        (2, 6, 0, -0.5),
        (2, 6, 8, 1.5),
        (3, 3, 3, 1.0),
        (3, 3, 0, 1.0),
    ],
)
def test_fulfilment(low: int, high: int, instances: int, score: float) -> None:
    """The fulfilment is the design document's score. A job that is not elastic has a fulfilment of 1."""
    assert job(low, high).fulfilment(instances) == score


def test_room_goes_to_the_least_fulfilled() -> None:
    """Each free place goes to the job that is least fulfilled at that moment, until all are equal."""
    jobs = {"full": job(1, 11, *["n1"] * 9), "poor": job(1, 11, "n1")}

    decision = decide_fulfilment(jobs, nodes(n1=13), ALL)

    assert after(decision, "full", "poor") == [None, 4]
    assert (
        decision.changes["poor"].reason == "there is room for 3 more: its fulfilment goes from 0.00 to 0.30"
    )
    assert "above 100% of the cluster's cpu" in decision.held_back["full"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cpu": 1.0, GPU: 1.0}, {"cpu": 1.0, GPU: 2.0}),
        ({"cpu": 1.0, "memory": 9 * GI}, {"cpu": 1.5, "memory": 1 * GI}),
        ({"cpu": 1.0, "memory": 5 * GI}, {"cpu": 1.0, "memory": 9 * GI}),
    ],
    ids=["GPUs", "cores", "memory"],
)
def test_ties_are_broken_by_size(first: dict[str, float], second: dict[str, float]) -> None:
    """Among equally fulfilled jobs, the one with fewer GPUs per instance comes first, then the one with fewer
    cores, then with less memory."""
    big = {"n1": FulfilmentNode({"cpu": 2.0, "memory": 10 * GI, GPU: 2.0})}

    decision = decide_fulfilment(
        {"a": FulfilmentJob(second, 0, 1, 0), "b": FulfilmentJob(first, 0, 1, 0)}, big, ALL | {"memory": 0.95}
    )

    assert after(decision, "a", "b") == [None, 1]


def test_the_name_breaks_the_last_tie() -> None:
    """Jobs that are equal in everything else are ordered by name."""
    assert after(decide_fulfilment({"b": job(0, 1), "a": job(0, 1)}, nodes(n1=1), ALL), "a", "b") == [1, None]


def test_gpu_jobs_get_their_cores_first() -> None:
    """Jobs with GPUs get their cores first, so that no GPU is idle because a less fulfilled job took the last
    core."""
    machine = {"n1": FulfilmentNode({"cpu": 4.0, "memory": 64 * GI, GPU: 4.0})}
    jobs = {"cpu": job(0, 8), "gpu": job(0, 4, "n1", "n1", cpu=1.0, gpu=1.0)}

    assert after(decide_fulfilment(jobs, machine, ALL), "cpu", "gpu") == [None, 4]


def test_all_gpus_are_used_but_not_all_cores() -> None:
    """By default, all GPUs but only 97 % of the cores may be used."""
    machine = {"n1": FulfilmentNode({"cpu": 100.0, GPU: 2.0})}

    decision = decide_fulfilment({"cpu": job(0, 200), "gpu": job(0, 9, gpu=1.0)}, machine)

    assert after(decision, "cpu", "gpu") == [97, 2]
    assert decision.held_back["cpu"] == "with one more, above 97% of the cluster's cpu would be used"


@pytest.mark.parametrize("resource", ["cpu", "memory", GPU])
def test_growing_and_shrinking_share_one_limit(resource: str) -> None:
    """At the limit of a resource the next decision is empty. Upstream would add and remove an instance for
    ever."""
    machine = {"n1": FulfilmentNode({"cpu": 100.0, "memory": 100.0, GPU: 100.0})}
    jobs = {
        "a": FulfilmentJob({resource: 1.0}, 1, 100, 1, ("n1",)),
        "b": FulfilmentJob({resource: 1.0}, 1, 100, 99, ("n1",) * 99),
    }

    decision = decide_fulfilment(jobs, machine, {resource: 0.9})

    assert after(decision, "a", "b") == [None, 89]
    jobs["b"] = replace(jobs["b"], parallelism=89, places=decision.places["b"])
    assert not decide_fulfilment(jobs, machine, {resource: 0.9}).changes


def test_a_node_is_filled_once() -> None:
    """An instance takes resources of its node. The third instance does not fit on any node, although the sum
    of free resources would be enough."""
    decision = decide_fulfilment({"a": job(1, 9, told=1, cpu=3.0)}, nodes(n1=5, n2=5), ALL)

    assert after(decision, "a") == [2]
    assert sorted(decision.places["a"]) == ["n1", "n2"]
    assert decision.held_back["a"] == "no node has room for one more"


def test_a_job_waits_and_the_most_fulfilled_makes_room() -> None:
    """A new job gets its minimum, and no more, from the most fulfilled job."""
    jobs = {"rich": job(1, 8, *["n1"] * 6), "less": job(1, 8, *["n1"] * 4), "new": job(2, 6, told=2)}

    decision = decide_fulfilment(jobs, nodes(n1=10), ALL)

    assert after(decision, "rich", "less", "new") == [4, None, None]
    assert decision.changes["rich"].reason == "makes room on n1 for new, which waits"
    assert decision.places["new"] == ("n1", "n1")


def test_room_is_made_on_one_node() -> None:
    """The instances that make room are on one node: a free core on each of two nodes is no room for an
    instance of two cores."""
    jobs = {"rich": job(1, 9, "n1", "n2", "n3", "n1", "n2", "n3"), "new": job(1, 1, told=1, cpu=2.0)}

    decision = decide_fulfilment(jobs, nodes(n1=2, n2=2, n3=2), ALL)

    assert after(decision, "rich", "new") == [4, None]
    assert decision.places == {"rich": ("n1", "n3", "n1", "n3"), "new": ("n2",)}


def test_nobody_gives_way_in_vain() -> None:
    """If a job could not start even with all others at their minimum, it waits and no other job changes."""
    jobs = {"rich": job(2, 9, *["n1"] * 4), "huge": job(1, 1, told=1, cpu=3.0), "half": job(3, 5, told=3)}

    decision = decide_fulfilment(jobs, nodes(n1=4), ALL)

    no_room = "the nodes have no room for them, not even with every elastic job at its minimum"
    assert not decision.changes
    assert decision.held_back == {
        "half": f"3 of its minimum wait: {no_room}",
        "huge": f"1 of its minimum wait: {no_room}",
        "rich": "with one more, above 100% of the cluster's cpu would be used",
    }


def test_a_pod_of_others_makes_room_too() -> None:
    """A waiting pod of a service counts as a job of one instance that is not elastic."""
    decision = decide_fulfilment(
        {"rich": job(1, 9, *["n1"] * 4), "web-7": job(1, 1, told=1)}, nodes(n1=4), ALL
    )
    assert after(decision, "rich", "web-7") == [3, None]


def test_other_pods_count() -> None:
    """When services grow, the jobs shrink, down to their minima."""
    jobs = {"a": job(1, 9, *["n1"] * 6), "b": job(2, 9, "n1", "n1")}
    busy = {"n1": FulfilmentNode({"cpu": 10.0, "memory": GI}, used={"cpu": 5.0})}

    decision = decide_fulfilment(jobs, busy, ALL)

    assert after(decision, "a", "b") == [3, None]
    assert (
        decision.changes["a"].reason
        == "more than 100% of the cluster's cpu is used; the most fulfilled give way"
    )
    worse = {"n1": FulfilmentNode({"cpu": 10.0, "memory": GI}, used={"cpu": 50.0})}
    assert after(decide_fulfilment(jobs, worse, ALL), "a", "b") == [1, None]


def test_only_users_of_a_resource_give_way() -> None:
    """If too many GPUs are in use, only jobs that use GPUs shrink."""
    machine = {"n1": FulfilmentNode({"cpu": 9.0, GPU: 4.0}, used={GPU: 2.0})}
    jobs = {"cpu": job(1, 9, *["n1"] * 5), "gpu": job(1, 9, *["n1"] * 4, cpu=0.5, gpu=1.0)}

    assert after(decide_fulfilment(jobs, machine, ALL), "gpu") == [2]
    assert after(decide_fulfilment(jobs, machine, ALL), "cpu") == [8]


@pytest.mark.parametrize(
    ("given", "number", "reason"),
    [
        (job(1, 2, "n1", "n1", "n1"), 2, "it had more than its maximum of 2"),
        (job(2, 3, "n1"), 3, "it had less than its minimum of 2"),
        (job(1, 9, "n1", "n1", told=9), 4, "5 of it wait for a node, and there is no room"),
    ],
    ids=["above", "below", "waits"],
)
def test_bounds(given: FulfilmentJob, number: int, reason: str) -> None:
    """A job is brought within its bounds. Instances beyond the minimum that wait without room are given
    up."""
    decision = decide_fulfilment({"a": given}, nodes(n1=4), ALL)
    assert (decision.changes["a"].after, decision.changes["a"].reason) == (number, reason)


def test_a_rigid_job_is_never_changed() -> None:
    """A job whose minimum equals its maximum is never changed."""
    assert not decide_fulfilment(
        {"a": job(2, 2, *["n1"] * 5), "b": job(2, 2, "n1")}, nodes(n1=4), ALL
    ).changes


def test_closed_nodes() -> None:
    """A node that takes no pods counts neither as capacity nor as use. Pods on it stay."""
    machine = nodes(n1=2) | {"n2": FulfilmentNode({"cpu": 64.0}, used={"cpu": 64.0}, schedulable=False)}
    jobs = {"a": job(1, 9, "n2", "n2", "n1")}

    decision = decide_fulfilment(jobs, machine, ALL)

    assert decision.places == {"a": ("n2", "n2", "n1", "n1")}


def test_excluded_nodes() -> None:
    """A job gets nothing on a node that its pods can't run on."""
    decision = decide_fulfilment(
        {"a": replace(job(1, 9), excluded=frozenset({"n2"}))}, nodes(n1=2, n2=9), ALL
    )
    assert decision.places == {"a": ("n1", "n1")}


def test_a_node_takes_so_many_pods() -> None:
    """Instances with tiny requests are limited by the kubelet, to 110 pods if the node declares no number."""
    tiny = {"a": job(1, 10**9, cpu=1e-6)}
    assert after(decide_fulfilment(tiny, nodes(n1=64)), "a") == [110]
    assert after(decide_fulfilment({"a": job(1, 10**9, pods=0.0)}, nodes(n1=64)), "a") == [110]
    assert after(
        decide_fulfilment(tiny, {"n1": FulfilmentNode({"cpu": 64.0, "pods": 30.0}, used={"pods": 4.0})}), "a"
    ) == [26]


@pytest.mark.parametrize(
    ("given", "load", "reason"),
    [
        (job(5, 2), {}, "its bounds are 5 and 2; they must be at least 0, the maximum not below the minimum"),
        (
            job(-1, 2),
            {},
            "its bounds are -1 and 2; they must be at least 0, the maximum not below the minimum",
        ),
        (job(1, 2, told=-3), {}, "its parallelism is -3; it must be at least 0"),
        (job(1, 2, cpu=math.nan), {}, "cpu is nan; it must be a finite number, at least 0"),
        (job(1, 2, cpu=-1.0), {}, "cpu is -1.0; it must be a finite number, at least 0"),
        (job(1, 2), {"cpu": math.nan}, "the max load of cpu is nan; it must be above 0 and at most 1"),
        (job(1, 2), {"cpu": 0.0}, "the max load of cpu is 0.0; it must be above 0 and at most 1"),
        (job(1, 2), {"cpu": 97.0}, "the max load of cpu is 97.0; it must be above 0 and at most 1"),
    ],
)
def test_nonsense_is_left_as_it_is(given: FulfilmentJob, load: dict[str, float], reason: str) -> None:
    """Invalid numbers lead to no change, and the decision names them."""
    decision = decide_fulfilment({"bad": given, "good": job(1, 3, memory=GI)}, nodes(n1=4), load)

    assert decision.held_back == {"bad": f"left as it is: {reason}"}
    assert after(decision, "bad", "good") == [None, 3]


def test_a_node_with_nonsense_is_ignored() -> None:
    """A node with invalid numbers is ignored: no job grows onto it, and none shrinks because of it."""
    machine = nodes(n1=2) | {"n2": FulfilmentNode({"cpu": math.nan})}

    decision = decide_fulfilment({"a": job(1, 9, "n2", "n2", "n2")}, machine, ALL)

    assert decision.ignored == {"n2": "cpu is nan; it must be a finite number, at least 0"}
    assert after(decision, "a") == [5]


def test_no_nodes() -> None:
    """If there are no nodes, no job shrinks."""
    decision = decide_fulfilment({"a": job(1, 9, "n1", "n1", told=5)}, {})
    assert decision.changes == {}
    assert decision.held_back["a"].startswith("there is no node to plan on")
