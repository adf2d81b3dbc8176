"""The scheduling decision."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler.decision import SchedulerNode, decide_scheduling
from edl_workflows.local.scheduler.resources import ResourceUnits, pod_units, to_units

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def make_pod(
    name: str, cpu: str = "", *, age: int = 0, memory: str = "", status: Any = None, **spec: Any
) -> Pod:
    """A pod with one container that asks for this much."""
    requests = {key: text for key, text in (("cpu", cpu), ("memory", memory)) if text}
    containers = [{"name": "main", "command": ["x"], "resources": {"requests": requests}}]
    metadata = {"name": name, "uid": name, "creationTimestamp": T0 - timedelta(seconds=age)}
    return Pod.model_validate(
        {"metadata": metadata, "spec": {"containers": containers, **spec}, "status": status or {}}
    )


def make_node(cpu: str = "2", *, pods: int = 10, **fields: Any) -> SchedulerNode:
    """A node of this size."""
    return SchedulerNode(
        "edl-local",
        ResourceUnits.parse({"cpu": cpu, "memory": "1Gi", "pods": str(pods)}),
        {"disk": "ssd"},
        **fields,
    )


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.metadata.name for pod in pods]


def test_older_pods_of_equal_priority_go_first() -> None:
    """Among equals the older pod is bound first; higher priority comes before age."""
    pods = [make_pod("young", "1"), make_pod("old", "1", age=9), make_pod("urgent", "1", priority=5)]
    decision = decide_scheduling(make_node("2"), pods)

    assert names(decision.bind) == ["urgent", "old"]
    assert [(pod.metadata.name, why) for pod, why in decision.refused] == [
        ("young", "0/1 nodes are available: 1 Insufficient cpu.")
    ]


def of_job(pod: Pod, job: str, *, master: bool = False) -> Pod:
    """The same pod, as a job's."""
    labels = {"elasticjob.dlrover/replica-type": "dlrover-master" if master else "worker"}
    owners = [{"uid": job, "controller": True}]
    document = pod.model_dump(by_alias=True)
    document["metadata"] |= {"labels": labels, "ownerReferences": owners}
    return Pod.model_validate(document)


def test_a_job_that_began_gets_its_pods_before_a_younger_job_begins() -> None:
    """A worker that was created later than the master of another job is still scheduled before that
    master."""
    pods = [
        of_job(make_pod("a-master", age=9, nodeName="edl-local"), "a", master=True),
        of_job(make_pod("b-master", age=8), "b", master=True),
        of_job(make_pod("a-worker", age=1), "a"),
        make_pod("single", age=7),
    ]

    assert names(decide_scheduling(make_node(), pods).bind) == ["a-worker", "b-master", "single"]
    assert names(decide_scheduling(make_node(pods=2), pods).bind) == ["a-worker"]


def test_masters_leave_room_for_the_pods_of_their_jobs() -> None:
    """If four jobs are submitted together to a node for four pods, two of them start, and the masters of the
    others say what they wait for."""
    masters = [of_job(make_pod(f"{job}-master", age=9), job, master=True) for job in "abcd"]
    decision = decide_scheduling(make_node(pods=4), masters)

    assert names(decision.bind) == ["a-master", "b-master"]
    assert {why for _, why in decision.refused} == {
        (
            "0/1 nodes are available: 1 Too many masters (half of the 4 pods that run at once: edl local up "
            "--pods-per-core)."
        )
    }


@pytest.mark.parametrize("workers", range(3))
def test_the_reason_of_a_master_does_not_depend_on_workers(workers: int) -> None:
    """Thousands of waiting masters keep their reason while workers of others come and go."""
    pods = [
        *(of_job(make_pod(f"{job}-master", nodeName="edl-local"), job, master=True) for job in "ab"),
        *(of_job(make_pod(f"{job}-worker", nodeName="edl-local"), job) for job in "ab"[:workers]),
        of_job(make_pod("c-master"), "c", master=True),
    ]

    [(_, why)] = decide_scheduling(make_node(pods=4), pods).refused

    assert "1 Too many masters" in why


@pytest.mark.parametrize("places", range(1, 7))
def test_jobs_submitted_together_all_end(places: int) -> None:
    """A worker of a job is created when its master runs, and both end after that. If the node has room for
    two pods, all jobs that are submitted together end."""
    running: dict[str, list[Pod]] = {}
    waiting = [of_job(make_pod(f"{job}-master", age=9), job, master=True) for job in "abcdefgh"]
    for _ in range(40):
        bound = [
            pod.model_copy(update={"spec": pod.spec.model_copy(update={"node_name": "edl-local"})})
            for pods in running.values()
            for pod in pods
        ]
        decision = decide_scheduling(make_node(pods=places), [*bound, *waiting])
        for pod in decision.bind:
            job = pod.metadata.controller_uid
            waiting.remove(pod)
            running.setdefault(job, []).append(pod)
            if pod.metadata.name.endswith("master"):
                waiting.append(of_job(make_pod(f"{job}-worker"), job))
            else:
                del running[job]

    assert bool(waiting) is (places == 1)  # one place holds no job of two pods


def test_a_large_pod_does_not_hold_back_small_ones() -> None:
    """A pod that does not fit waits; later ones that fit are bound."""
    decision = decide_scheduling(make_node("2"), [make_pod("big", "3", age=9), make_pod("small", "1")])

    assert names(decision.bind) == ["small"]


@pytest.mark.parametrize(
    ("pod", "node", "reason"),
    [
        pytest.param(make_pod("a", "3"), make_node(), "1 Insufficient cpu", id="cpu"),
        pytest.param(
            make_pod("a", "3", memory="2Gi"),
            make_node(),
            "1 Insufficient cpu, 1 Insufficient memory",
            id="two",
        ),
        pytest.param(
            make_pod("a"),
            make_node(pods=0),
            "1 Too many pods (0 run at once: edl local up --pods-per-core)",
            id="pods",
        ),
        pytest.param(
            make_pod("a"), make_node(unschedulable=True), "1 node(s) were unschedulable", id="cordoned"
        ),
        pytest.param(
            make_pod("a", nodeSelector={"disk": "hdd"}),
            make_node(),
            "1 node(s) didn't match Pod's node affinity/selector",
            id="selector",
        ),
        pytest.param(
            make_pod(
                "a", affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}
            ),
            make_node(),
            "1 node(s) can't evaluate affinity to other pods, which the embedded cluster does not support",
            id="affinity to pods",
        ),
    ],
)
def test_why_a_pod_waits(pod: Pod, node: SchedulerNode, reason: str) -> None:
    """The message of a waiting pod has the form of kube-scheduler's."""
    decision = decide_scheduling(node, [pod])

    assert decision.refused[0][1] == f"0/1 nodes are available: {reason}."


def test_an_unknown_resource_is_insufficient() -> None:
    """A GPU that the node does not have is never granted."""
    pod = make_pod("gpu")
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    pod = Pod.model_validate(
        {**pod.model_dump(by_alias=True), "spec": {"containers": [{"name": "m", "resources": limits}]}}
    )

    assert (
        decide_scheduling(make_node(), [pod]).refused[0][1]
        == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    )


def test_who_does_not_count_and_who_does_not_wait() -> None:
    """Finished pods free their share. Pods that are bound, gated or for another scheduler are left alone."""
    pods = [
        make_pod("done", "2", nodeName="edl-local", status={"phase": "Succeeded"}),
        make_pod("runs", "1", nodeName="edl-local", status={"phase": "Running"}),
        make_pod("other", "1", schedulerName="mine"),
        make_pod("gated", "1", schedulingGates=[{"name": "later"}]),
        make_pod("fits", "1"),
    ]
    decision = decide_scheduling(make_node("2"), pods)

    assert names(decision.bind) == ["fits"]
    assert names(decision.gated) == ["gated"]
    assert decision.refused == ()


def test_init_containers_count_by_their_largest() -> None:
    """A pod occupies the sum of its containers, or its largest init container if that is larger."""
    spec = {
        "containers": [{"name": n, "resources": {"requests": {"cpu": "500m"}}} for n in ("a", "b")],
        "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "800m", "memory": "1Gi"}}}],
    }
    pod = Pod.model_validate({"metadata": {"name": "x"}, "spec": spec})

    assert pod_units(pod).values == {"cpu": 1000, "memory": 2**30, "pods": 1}


@pytest.mark.parametrize(("amount", "expected"), [(0.1, 100), (0.0001, 1), (1.5, 1500), (2, 2000)])
def test_cpu_is_counted_in_millicores(amount: float, expected: int) -> None:
    """Fractions of a millicore are rounded up, as Kubernetes does."""
    assert to_units("cpu", amount) == expected


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3), st.integers(0, 99)), max_size=12),
    st.integers(0, 4000),
)
def test_the_node_is_never_overcommitted(wanted: list[tuple[int, int, int]], capacity: int) -> None:
    """Bound pods never exceed the node's capacity. A second decision binds nothing, and the order of the
    input does not matter."""
    pods = [make_pod(f"p{i}", f"{cpu}m", priority=p, age=age) for i, (cpu, p, age) in enumerate(wanted)]
    node = make_node(f"{capacity}m", pods=100)
    decision = decide_scheduling(node, pods)
    bound = set(names(decision.bind))
    after = [
        pod.model_copy(update={"spec": pod.spec.model_copy(update={"node_name": node.name})})
        if pod.metadata.name in bound
        else pod
        for pod in pods
    ]

    assert sum(pod_units(pod).values.get("cpu", 0) for pod in decision.bind) <= capacity
    assert decide_scheduling(node, after).bind == ()
    assert names(decide_scheduling(node, list(reversed(pods))).bind) == names(decision.bind)
