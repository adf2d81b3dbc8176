"""Laws of the fulfilment algorithm for any jobs on any nodes; `bench_fulfilment` checks them at length."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import given, settings

from edl_workflows.core.scaling.paddle import jobs as fulfilment_jobs
from edl_workflows.core.scaling.paddle.fulfilment import (
    DEFAULT_MAX_LOAD,
    FulfilmentDecision,
    FulfilmentJob,
    decide_fulfilment,
)
from edl_workflows.core.scaling.paddle.nodes import FulfilmentNode

NODES = ("a", "b", "c", "d")
RESOURCES = ("cpu", "memory", "nvidia.com/gpu")
GI = 2.0**30
MADE_ROOM = "it gives up room for a job that waits, and doesn't grow in the same plan"


@dataclass(frozen=True)
class Cluster:
    """The input of the algorithm."""

    jobs: dict[str, FulfilmentJob]
    nodes: dict[str, FulfilmentNode]
    max_load: dict[str, float] = field(default_factory=dict)

    def decide(self) -> FulfilmentDecision:
        return decide_fulfilment(self.jobs, self.nodes, self.max_load)

    def applied(self, decision: FulfilmentDecision) -> "Cluster":
        """The cluster after the decision was carried out and the scheduler placed the pods as expected."""
        found = {
            key: replace(
                job,
                parallelism=decision.changes[key].after if key in decision.changes else job.parallelism,
                places=decision.places.get(key, job.places),
            )
            for key, job in self.jobs.items()
        }
        return replace(self, jobs=found)

    def counts(self, node: str) -> bool:
        return node in self.nodes and self.nodes[node].schedulable

    def free(self, name: str, *, minima: bool = False) -> dict[str, float]:
        """The free amount of a resource on each node, now or with every elastic job at its minimum."""
        found = {
            key: node.total.get(name, 0) - node.used.get(name, 0)
            for key, node in self.nodes.items()
            if node.schedulable
        }
        for job in self.jobs.values():
            for place in job.places[: job.min_instances if minima and job.elastic else None]:
                if place in found:
                    found[place] -= job.requests.get(name, 0)
        return found

    def left(self, name: str) -> float:
        """How much of a resource may still be used in the whole cluster."""
        load = self.max_load.get(name, 1.0 if name == "nvidia.com/gpu" else DEFAULT_MAX_LOAD)
        totals = (node.total.get(name, 0) for node in self.nodes.values() if node.schedulable)
        used = sum(totals) - sum(self.free(name).values())
        return sum(node.total.get(name, 0) for node in self.nodes.values() if node.schedulable) * load - used


def random_cluster(random: Random) -> Cluster:
    """Up to 7 jobs on up to 4 nodes. About half of the clusters are full, and a third of the jobs wait."""
    nodes = {
        key: FulfilmentNode(
            total={
                "cpu": random.choice([2.0, 4.0, 7.5, 16.0]),
                "memory": random.choice([4, 16, 64]) * GI,
                "nvidia.com/gpu": random.choice([0.0, 0.0, 2.0, 8.0]),
            },
            used={"cpu": random.choice([0.0, 0.1, 1.0, 5.0]), "memory": random.choice([0.0, 1.0]) * GI},
            schedulable=random.random() > 0.1,
        )
        for key in random.sample(NODES, random.randint(1, 4))
    }
    jobs = {
        f"job-{number}": random_job(random, [*nodes, *nodes, "gone"])
        for number in range(random.randint(0, 7))
    }
    loads = {name: random.choice([0.5, 0.9, 1.0]) for name in RESOURCES if random.random() < 0.3}
    return Cluster(jobs, nodes, loads)


def random_job(random: Random, places: list[str]) -> FulfilmentJob:
    """Its instances may be anywhere, even without room for them: limits and nodes change while jobs run."""
    requests = {
        "cpu": random.choice([0.1, 0.5, 1.0, 2.0, 3.5]),
        "memory": random.choice([0.5, 1.0, 8.0]) * GI,
    }
    if random.random() < 0.3:
        requests["nvidia.com/gpu"] = random.choice([1.0, 2.0])
    low = random.randint(0, 3)
    high = low + random.choice([0, 1, 2, 5, 20])
    held = random.randint(0, high + 1) if random.random() < 0.7 else 0
    return FulfilmentJob(
        requests,
        low,
        high,
        parallelism=max(0, random.choice([low, held, held, held + 2])),
        places=tuple(random.choices(places, k=held)),
        excluded=frozenset(random.sample(NODES, 1)) if random.random() < 0.1 else frozenset(),
    )


def check_bounds(cluster: Cluster, decision: FulfilmentDecision) -> None:
    """Elastic jobs stay within their bounds, others do not change, and no instance is on an excluded node."""
    after = cluster.applied(decision)
    for key, job in cluster.jobs.items():
        if not job.elastic:
            assert key not in decision.changes, key
        else:
            assert job.min_instances <= after.jobs[key].parallelism <= job.max_instances, key
        places = decision.places.get(key, ())
        assert len(places) <= after.jobs[key].parallelism, key
        for place in set(places):
            if not cluster.counts(place) or place in job.excluded:
                assert places.count(place) <= job.places.count(place), key


def check_capacity(cluster: Cluster, decision: FulfilmentDecision) -> None:
    """Only minima may exceed a limit, no node is overloaded, and no job grows beyond a limit."""
    after = cluster.applied(decision)
    for name in RESOURCES:
        over = after.left(name) < -1e-6 * GI
        free, before = after.free(name), cluster.free(name)
        for key, job in after.jobs.items():
            if not over or not job.elastic or not job.requests.get(name):
                continue
            spare = [place for place in job.places[job.min_instances :] if cluster.counts(place)]
            assert not spare, (name, key, "holds more than its minimum of what is used too much")
        for node, amount in free.items():
            assert amount >= min(before[node], 0) - 1e-6 * GI, (name, node)


def check_fixed_point(cluster: Cluster, decision: FulfilmentDecision) -> int:
    """Deciding again changes nothing, except that a job that made room on a node may grow elsewhere, once.

    Returns:
        How many jobs grew again.
    """
    once = cluster.applied(decision)
    again = once.decide()
    for key, change in again.changes.items():
        assert change.after > change.before, (key, change)
        assert decision.held_back[key] == MADE_ROOM, (key, change)
    assert again.changes.keys() == again.places.keys(), (again.changes, again.places)
    if again.changes:
        third = once.applied(again).decide()
        assert not third.changes, third.changes
        assert not third.places, third.places
    return len(again.changes)


def check_exhausted(cluster: Cluster, decision: FulfilmentDecision) -> None:
    """Every job that could grow has grown, no pending minimum could be placed, and all others have a
    reason."""
    after = cluster.applied(decision)
    free = {name: after.free(name) for name in RESOURCES}
    left = {name: after.left(name) for name in RESOURCES}
    attainable = {name: after.free(name, minima=True) for name in RESOURCES}
    for key, job in after.jobs.items():
        waiting = (job.min_instances if job.elastic else job.parallelism) - len(job.places)
        if waiting > 0:
            assert fitting(job, after, attainable) < waiting, (key, "could be helped")
        elif job.elastic and job.parallelism < job.max_instances:
            in_limits = all(
                amount <= left[name] - 1e-6 * GI * (name == "memory") for name, amount in job.requests.items()
            )
            room = fitting(job, after, free) and in_limits
            assert not room or decision.held_back[key] == MADE_ROOM, (key, "could grow")
        else:
            assert key not in decision.held_back, key
            continue
        assert decision.held_back[key], key


def fitting(job: FulfilmentJob, cluster: Cluster, free: Mapping[str, Mapping[str, float]]) -> int:
    """How many more instances fit on the nodes."""
    return sum(
        max(
            0,
            min(
                math.floor(free[name][node] / amount + 1e-9)
                for name, amount in job.requests.items()
                if amount
            ),
        )
        for node in free["cpu"]
        if node not in job.excluded
    )


def check_permutation(cluster: Cluster, decision: FulfilmentDecision, random: Random) -> None:
    """The decision does not depend on the order of jobs and nodes."""
    jobs, nodes = list(cluster.jobs.items()), list(cluster.nodes.items())
    random.shuffle(jobs)
    random.shuffle(nodes)
    assert replace(cluster, jobs=dict(jobs), nodes=dict(nodes)).decide() == decision


def check_all(cluster: Cluster, random: Random) -> int:
    """All laws.

    Returns:
        How many jobs grew again after the decision was carried out.
    """
    decision = cluster.decide()
    if not any(cluster.counts(node) for node in cluster.nodes):
        assert (decision.changes, decision.held_back.keys()) == ({}, cluster.jobs.keys())
        return 0
    check_bounds(cluster, decision)
    check_capacity(cluster, decision)
    check_exhausted(cluster, decision)
    check_permutation(cluster, decision, random)
    return check_fixed_point(cluster, decision)


CLUSTERS = st.randoms(use_true_random=False).map(random_cluster)
ODD = st.floats() | st.sampled_from([0.0, -1.0, 1e-9, 1e300, math.inf, math.nan])
ODD_COUNTS = st.integers(-3, 6) | st.sampled_from([10**9, 10**400, -(10**400)])


@given(CLUSTERS, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_all_laws(cluster: Cluster, random: Random) -> None:
    """Each decision keeps bounds, limits and the capacity of nodes, does not change when it is repeated,
    wastes no free capacity, and does not depend on the order of jobs."""
    check_all(cluster, random)


@given(CLUSTERS)
def test_a_stale_view_changes_nothing(cluster: Cluster) -> None:
    """If a decision was carried out but the scheduler has not placed any pod yet, the next one is the
    same."""
    jobs = {key: replace(job, places=job.places[: job.parallelism]) for key, job in cluster.jobs.items()}
    decision = decide_fulfilment(jobs, cluster.nodes, cluster.max_load)
    told = {
        key: replace(jobs[key], parallelism=change.after)
        for key, change in decision.changes.items()
        if change.after > change.before
    }
    again = decide_fulfilment(jobs | told, cluster.nodes, cluster.max_load)
    assert again.changes == {key: change for key, change in decision.changes.items() if key not in told}
    assert again.places == decision.places


@given(CLUSTERS, st.sampled_from(RESOURCES))
def test_who_does_not_use_a_resource_keeps_what_it_has(cluster: Cluster, name: str) -> None:
    """A job that does not request a resource loses nothing because of a shortage of it."""
    jobs = {
        key: replace(job, requests={name: job.requests.get(name, 0.0)})
        if number % 2
        else replace(job, requests={})
        for number, (key, job) in enumerate(cluster.jobs.items())
    }
    quiet = replace(cluster, jobs=jobs)
    if any(quiet.counts(node) for node in quiet.nodes):
        for key, job in jobs.items():
            if job.elastic and not job.requests:
                held = min(len(job.places), job.parallelism, job.max_instances)
                assert quiet.applied(quiet.decide()).jobs[key].parallelism >= held


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.data(),
)
def test_more_room_takes_from_nobody(sizes: list[tuple[int, int]], count: int, data: st.DataObject) -> None:
    """If all jobs have the same shape, an additional node or a higher limit gives no job fewer instances."""
    jobs = {f"job-{n}": FulfilmentJob({"cpu": 1.0}, 0, high, 0) for n, (high, _) in enumerate(sizes)}
    nodes = {f"node-{n}": FulfilmentNode({"cpu": 4.0}) for n in range(count)}
    less, more = sorted(data.draw(st.tuples(*[st.sampled_from([0.5, 0.8, 0.97, 1.0])] * 2)))
    few = decide_fulfilment(jobs, nodes, {"cpu": less}).changes
    for many in (
        decide_fulfilment(jobs, nodes, {"cpu": more}).changes,
        decide_fulfilment(jobs, nodes | {"node-x": FulfilmentNode({"cpu": 4.0})}, {"cpu": less}).changes,
    ):
        assert all(many[key].after >= change.after for key, change in few.items())


@given(
    bounds=st.lists(st.tuples(st.integers(0, 9), st.sampled_from((1, 2, 3, 7, 10**9, 10**14)))),
    room=st.integers(0, 60),
    at_once=st.integers(1, 20),
)
def test_always_the_least_fulfilled_gets_the_next(
    bounds: list[tuple[int, int]], room: int, at_once: int
) -> None:
    """Instances go one by one to the least fulfilled job, as documented, even though many turns are computed
    at once."""
    jobs = {
        f"job-{n:03}": FulfilmentJob({"cpu": 1.0}, low, low + span, low)
        for n, (low, span) in enumerate(bounds)
    }
    minima = sum(low for low, _ in bounds)
    with patch.object(fulfilment_jobs, "_TURNS", at_once):
        decision = decide_fulfilment(
            jobs, {"a": FulfilmentNode({"cpu": 1000.0, "pods": float(minima + room)})}, {"cpu": 1.0}
        )
    number = {key: job.min_instances for key, job in jobs.items()}
    for _ in range(room):
        if able := [key for key in sorted(jobs) if number[key] < jobs[key].max_instances]:
            number[min(able, key=lambda key: jobs[key].fulfilment(number[key]))] += 1
    assert {key: change.after for key, change in decision.changes.items()} == {
        key: after for key, after in number.items() if after != jobs[key].min_instances
    }


@st.composite
def odd_jobs(draw: st.DrawFn) -> FulfilmentJob:
    requests = draw(st.dictionaries(st.sampled_from([*RESOURCES, "pods", ""]), ODD, max_size=3))
    places = tuple(draw(st.lists(st.sampled_from([*NODES, "gone"]), max_size=4)))
    return FulfilmentJob(requests, draw(ODD_COUNTS), draw(ODD_COUNTS), draw(ODD_COUNTS), places)


@given(
    st.dictionaries(st.sampled_from("uvwxyz"), odd_jobs()),
    st.dictionaries(
        st.sampled_from(NODES),
        st.builds(FulfilmentNode, *[st.dictionaries(st.sampled_from(RESOURCES), ODD)] * 2),
    ),
    st.dictionaries(st.sampled_from(RESOURCES), ODD, max_size=1),
)
@settings(max_examples=50)
def test_nonsense_is_left_alone(
    jobs: dict[str, FulfilmentJob], nodes: dict[str, FulfilmentNode], load: dict[str, float]
) -> None:
    """For any numbers there is a decision. Jobs with invalid numbers are left unchanged, with a reason."""
    decision = decide_fulfilment(jobs, nodes, load)
    for key, job in jobs.items():
        sound = 0 <= job.min_instances <= job.max_instances and job.parallelism >= 0
        if not sound or any(not 0 <= amount < math.inf for amount in job.requests.values()):
            assert key not in decision.changes
            assert decision.held_back[key]
        elif key in decision.changes:
            assert job.min_instances <= decision.changes[key].after <= job.max_instances
            assert decision.changes[key].reason
