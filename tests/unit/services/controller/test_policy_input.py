"""What an allocation policy is told of a cluster."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest

from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.model import DIJob, TaskCounts
from edl_workflows.core.kubernetes import names
from edl_workflows.core.scaling.first_fit import FirstFitPolicy
from edl_workflows.services.controller.policy_input import (
    AllocationSnapshot,
    build_snapshot,
    group_by_scenario,
    kept_node,
    kept_pod,
    node_demand,
)
from tests.unit.services.di_server.support import di_job, task

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
DEFAULTS = {"cpu": "1", "memory": "1Gi"}


def node(name: str = "n1", cpu: str = "8", *, ready: str = "True", **spec: Any) -> dict[str, Any]:
    """A node as the API has it."""
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T11:58:00Z"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"disk": "ssd"}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "10"}, "conditions": [condition]},
    }


def pod(name: str, cpu: str, job: str = "", *, on: str = "n1", phase: str = "Running") -> dict[str, Any]:
    """A pod as the API has it."""
    labels = {pods.JOB_LABEL: job, pods.OPERATOR_LABEL: pods.OPERATOR} if job else {}
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": on, "containers": [container]},
        "status": {"phase": phase},
    }


def job(*tasks: dict[str, Any], allocation: tuple[str, ...] = (), **spec: Any) -> DIJob:
    """A preemptible job, an hour old."""
    manifest = di_job(*tasks, preemptible=True, **spec)
    manifest["metadata"] |= {"namespace": "default", "creationTimestamp": "2026-01-01T11:00:00Z"}
    return DIJob.parse(manifest | {"status": {"allocation": list(allocation)}})


def taken(
    jobs: list[DIJob], nodes: list[dict[str, Any]], placed: list[dict[str, Any]] | None = None
) -> AllocationSnapshot:
    """The snapshot of these."""
    return build_snapshot(jobs, map(kept_node, nodes), map(kept_pod, placed or []), DEFAULTS, NOW, {})


def cpu(nodes: Mapping[str, Any]) -> dict[str, float]:
    """Free cores by node."""
    return {key: info.free["cpu"] for key, info in nodes.items()}


def test_other_pods_take_room() -> None:
    """Pods that run or are bound take capacity. Pods that have ended or wait for a node do not."""
    placed = [
        pod("a", "1"),
        pod("b", "2", phase="Pending"),
        pod("c", "4", phase="Succeeded"),
        pod("d", "4", on="", phase="Pending"),
    ]
    found = taken([], [node(), node("n2")], placed)
    assert cpu(found.nodes) == {"n1": 5.0, "n2": 8.0}
    assert found.nodes["n1"].free["pods"] == 8.0


def test_jobs_share_what_their_own_pods_take() -> None:
    """When all jobs are optimized together, their own pods do not count. For a new job they do, or what they
    are allocated if that is more."""
    held = job(task("none", 3, name="w"), allocation=("n1", "n1", "n2"))
    found = taken([held], [node(), node("n2")], [pod("p", "2", "walk")])
    assert cpu(found.nodes) == {"n1": 8.0, "n2": 8.0}
    assert cpu(found.left) == {"n1": 6.0, "n2": 7.0}
    assert found.previous == {"default/walk": ("n1", "n1", "n2")}


def test_pods_of_jobs_that_are_not_asked_about_count() -> None:
    """Pods of DIJobs that are not optimized, because they are not preemptible or have ended, take capacity
    like any others."""
    assert cpu(taken([], [node()], [pod("p", "2", "walk")]).nodes) == {"n1": 6.0}


def test_given_takes_room() -> None:
    """The room that one new job got is not offered to the next."""
    found = taken([job(task("none", 2, name="w"))], [node()])
    assert cpu(found.given("default/walk", ["n1", "n1"]).left) == {"n1": 6.0}


def test_bounds_and_demands() -> None:
    """The elastic task has the last ranks and the bounds. Missing requests of a template have defaults."""
    container = {"name": "main", "image": "a", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "500m"}}}
    learner = task("learner", template={"spec": {"containers": [container]}})
    collector = task("collector", 2, minReplicas=1, maxReplicas=5)
    (info,) = taken([job(collector, learner, priority="high")], [node()]).jobs.values()
    assert (info.min_replicas, info.max_replicas, info.priority, info.age) == (2, 6, 1, 3600.0)
    assert info.fixed == ({"cpu": 0.5, "nvidia.com/gpu": 1.0, "memory": 2.0**30, "pods": 1.0},)
    assert info.resources == {"cpu": 1.0, "memory": 2.0**30, "pods": 1.0}


def test_no_maximum_is_replicas() -> None:
    """A job without a maximum counts its replicas as the maximum, so that it does not fill the cluster."""
    (info,) = taken([job(task("collector", 3))], [node()]).jobs.values()
    assert (info.min_replicas, info.max_replicas) == (1, 3)


@pytest.mark.parametrize(
    ("about", "there", "schedulable"),
    [
        (node(), True, True),
        (node(unschedulable=True), True, False),
        (node(ready="False"), True, False),
        (node(ready="Unknown") | {"status": {"conditions": []}}, True, False),
    ],
    ids=["ready", "cordoned", "not ready for two minutes", "new"],
)
def test_closed_nodes(about: dict[str, Any], there: bool, schedulable: bool) -> None:
    """A node that is cordoned or not ready still counts, but is not schedulable."""
    found = taken([], [about])
    assert (bool(found.nodes), found.nodes["n1"].schedulable) == (there, schedulable)


def test_a_lost_node_is_gone() -> None:
    """A node that has not been ready for five minutes does not count."""
    lost = node(ready="Unknown")
    lost["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T11:54:00Z"
    assert taken([], [lost]).nodes == {}


CORDONED = {"unschedulable": True}
TAINTED = {"taints": [{"key": "broken", "effect": "NoExecute"}]}
HELD: list[Any] = [
    pytest.param({}, [], ("n1", "n1", "n2"), id="an open node, pods still to come"),
    pytest.param(
        CORDONED, [pod("walk-w-0", "1", "walk"), pod("walk-w-1", "1", "walk")], ("n1", "n1", "n2"),
        id="cordoned, and they run on",
    ),
    pytest.param(CORDONED, [], ("", "", "n2"), id="drained"),
    pytest.param(TAINTED, [], ("", "", "n2"), id="tainted, and its pods are gone"),
    pytest.param(CORDONED, [pod("walk-w-1", "1", "walk")], ("", "n1", "n2"), id="a drain that is under way"),
    pytest.param(
        CORDONED, [pod("walk-w-1", "1", "walk", on="", phase="Pending")], ("", "", "n2"),
        id="made anew, and waits for its node",
    ),
    pytest.param(CORDONED, [pod("walk-w-1", "1", "walk", phase="Failed")], ("", "", "n2"), id="failed there"),
    pytest.param(
        CORDONED, [pod("walk-w-1", "1", "walk", phase="Succeeded")], ("", "n1", "n2"), id="succeeded there"
    ),
    pytest.param(CORDONED, [pod("walk-w-0", "1", "other")], ("", "", "n2"), id="another job's pod"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "placed", "held"), HELD)
def test_places_on_closed_nodes(
    spec: dict[str, Any], placed: list[dict[str, Any]], held: tuple[str, ...]
) -> None:
    """Replicas that run on a cordoned node stay. A replica that is allocated to it but does not run there
    gets another node."""
    walk = job(task("none", 3, name="w"), allocation=("n1", "n1", "n2"))
    found = taken([walk], [node(**spec), node("n2")], placed)
    assert found.previous == {"default/walk": held}
    answer = FirstFitPolicy().optimize(found.jobs, found.nodes, found.previous)["default/walk"]
    assert answer.count("n1") == held.count("n1")
    assert len(answer) == 3


def test_who_has_succeeded_needs_no_other_place() -> None:
    """A replica that has succeeded gets no other node, even if its pod is gone from a drained node."""
    done = job(task("none", 2, name="w"), allocation=("n1", "n2"))
    status = done.status.model_copy(update={"replica_statuses": {"w": TaskCounts(completed=[0])}})
    done = done.model_copy(update={"status": status})
    found = taken([done], [node(unschedulable=True), node("n2")], [pod("walk-w-1", "1", "walk", on="n2")])
    assert found.previous == {"default/walk": ("n1", "n2")}


@pytest.mark.parametrize(
    ("rules", "excluded"),
    [
        ({}, {"tainted"}),
        ({"nodeSelector": {"disk": "ssd"}}, {"tainted"}),
        ({"nodeSelector": {"disk": "hdd"}}, {"tainted", "plain"}),
        ({"tolerations": [{"operator": "Exists"}]}, set()),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]}, set()),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, set()),
        ({"tolerations": [{"key": "gpu", "value": "no"}]}, {"tainted"}),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, {"tainted"}),
    ],
)
def test_selectors_and_taints(rules: dict[str, Any], excluded: set[str]) -> None:
    """Nodes that don't let a task's pods in are excluded, by Kubernetes' rules."""
    taints = [
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "x", "effect": "PreferNoSchedule"},
    ]
    template = {"spec": {"containers": [{"name": "main", "image": "a"}]} | rules}
    wanted = job(task("none", name="w", template=template))
    (info,) = taken([wanted], [node("plain"), node("tainted", taints=taints)]).jobs.values()
    assert info.excluded == excluded


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    """A PodSpec's required node affinity."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def says(key: str, operator: str, *values: str, where: str = "matchExpressions") -> dict[str, Any]:
    """A term of one requirement."""
    return {where: [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "excluded"),
    [
        ([says("gpu", "In", "a100", "h100")], {"plain", "t4"}),
        ([says("gpu", "NotIn", "a100")], {"a100"}),
        ([says("gpu", "Exists")], {"plain"}),
        ([says("gpu", "DoesNotExist")], {"a100", "t4"}),
        ([says("memory", "Gt", "16")], {"plain", "t4"}),
        ([says("memory", "Lt", "40")], {"plain", "a100"}),
        ([says("gpu", "Gt", "1")], {"plain", "a100", "t4"}),
        ([says("metadata.name", "In", "t4", where="matchFields")], {"plain", "a100"}),
        ([says("metadata.name", "NotIn", "t4", where="matchFields")], {"t4"}),
        (
            [says("gpu", "Exists") | says("metadata.name", "NotIn", "t4", where="matchFields")],
            {"plain", "t4"},
        ),
        ([says("gpu", "In", "a100"), says("gpu", "In", "t4")], {"plain"}),
        ([says("gpu", "Near", "a100")], {"plain", "a100", "t4"}),
        ([{}], set()),
    ],
)
def test_required_node_affinity(terms: list[dict[str, Any]], excluded: set[str]) -> None:
    """Nodes that the scheduler would reject are excluded: one term of the affinity must hold in all its
    parts."""
    nodes = [node("plain"), node("a100"), node("t4")]
    nodes[1]["metadata"]["labels"] = {"gpu": "a100", "memory": "80"}
    nodes[2]["metadata"]["labels"] = {"gpu": "t4", "memory": "16"}
    template = {"spec": {"containers": [{"name": "main", "image": "a"}]} | affine(*terms)}
    (info,) = taken([job(task("none", name="w", template=template))], nodes).jobs.values()
    assert info.excluded == excluded


def test_preferred_node_affinity_excludes_nothing() -> None:
    """A preferred node affinity excludes no node."""
    wish = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": says("x", "Exists")}]
    }
    template = {"spec": {"containers": [{"name": "main", "image": "a"}], "affinity": {"nodeAffinity": wish}}}
    (info,) = taken([job(task("none", name="w", template=template))], [node()]).jobs.values()
    assert info.excluded == set()


def test_a_demand_is_that_of_the_whole_pod() -> None:
    """The demand of a replica includes init containers, sidecars and the pod's overhead."""

    def container(cpu: str = "", **more: str) -> dict[str, Any]:
        return {"name": "c", "image": "i"} | ({"resources": {"requests": {"cpu": cpu}}} if cpu else {}) | more

    spec = {
        "initContainers": [container("3", restartPolicy="Always"), container("500m")],
        "containers": [container()],
        "overhead": {"cpu": "250m"},
    }
    wanted = job(task("none", name="w", template={"spec": spec}))
    (info,) = taken([wanted], [node()]).jobs.values()
    assert info.resources == {"cpu": 4.25, "memory": 2.0**30, "pods": 1.0}


def test_requests_of_a_pod() -> None:
    """A pod requests, by the scheduler's rules, the sum of its containers and sidecars, or its largest init
    container, and the overhead."""

    def container(amount: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": amount}}} | more

    before = [container("3"), container("1", restartPolicy="Always"), container("2")]
    spec = {
        "containers": [container("500m"), container("1")],
        "initContainers": before,
        "overhead": {"cpu": "100m"},
    }
    assert node_demand(spec) == {"cpu": pytest.approx(3.1), "pods": 1.0}


def reporting(created: str, annotations: dict[str, str] | None, speed: int) -> dict[str, Any]:
    """A job's manifest as it is cached."""
    metadata = {
        "name": created,
        "namespace": "default",
        "creationTimestamp": created,
        "annotations": annotations,
    }
    return {"metadata": metadata, "status": {"profilings": {"speed": speed}} if speed else {}}


def test_what_the_jobs_of_a_scenario_reported() -> None:
    """The reports of a scenario's jobs are given with the newest first. Jobs without a report or a scenario
    give none."""
    nightly = {names.SCENARIO_ANNOTATION: "nightly"}
    found = group_by_scenario(
        [
            reporting("2026-01-01T00:00:00Z", nightly, 1),
            reporting("2026-01-02T00:00:00Z", nightly, 2),
            reporting("2026-01-03T00:00:00Z", nightly, 0),
            reporting("2026-01-04T00:00:00Z", None, 4),
        ]
    )
    assert found == {"default/nightly": [{"speed": 2}, {"speed": 1}]}
