"""Each job's pods are reached by its own pods only: `edl_workflows.core.jobs.isolation`, for every kind."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.actions import Refusal
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.kubernetes import names
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import NAMESPACE, JobsNamespace
from tests.unit.core.jobs.examples import make_example
from tests.unit.core.jobs.network_policies import admits
from tests.unit.services.controller.support import auto_plan

PORTS = (names.MASTER_PORT, names.AGENT_PORT, *names.NODE_PORTS["ps"], 22270, 7164, 40_001)
"""The master's, an agent's, training programs', and one that a program took for itself."""


def guarded_world() -> JobsNamespace:
    """An installation that makes policies."""
    world = JobsNamespace()
    world.settings = replace(world.settings, network_policies=True)
    return world


def of_kind(world: JobsNamespace, kind: str) -> list[dict[str, Any]]:
    return [obj for (what, _), obj in world.objects.items() if what == kind]


@pytest.mark.parametrize("kind", KIND_CASES)
def test_only_a_jobs_own_pods_reach_its_pods(kind: str) -> None:
    """On every port, only the job's own pods reach its pods. Pods of other jobs, pods of the same names in
    other namespaces, and all others do not."""
    world = guarded_world()
    world.add(make_example(kind))
    other = make_example(kind)
    other["metadata"]["name"] = "other"
    world.add(other)
    world.settle()
    policies, pods = of_kind(world, "NetworkPolicy"), of_kind(world, "Pod")
    mine = [pod for pod in pods if pod["metadata"]["ownerReferences"][0]["name"] != "other"]
    others = [pod for pod in pods if pod not in mine]
    assert mine
    assert others
    elsewhere = copy.deepcopy(mine[0])
    elsewhere["metadata"]["namespace"] = "elsewhere"
    stranger = {"metadata": {"namespace": NAMESPACE, "labels": {"app": "notebook"}}}

    for target in mine:
        for port in PORTS:
            assert all(admits(policies, source, target, port) for source in mine)
            assert not any(admits(policies, s, target, port) for s in (*others, elsewhere, stranger))


@pytest.mark.parametrize("kind", KIND_CASES)
def test_prometheus_reaches_masters_only(kind: str) -> None:
    """If the installation names Prometheus' namespace and labels, such pods reach the port of masters, and no
    other port; pods of the namespace without the labels, and pods with them elsewhere, reach none. Kinds
    without a master admit nobody."""
    world = guarded_world()
    labels = {"app": "prometheus"}
    world.settings = replace(world.settings, prometheus_namespace="monitoring", prometheus_labels=labels)
    world.add(make_example(kind))
    world.settle()
    policies, pods = of_kind(world, "NetworkPolicy"), of_kind(world, "Pod")
    prometheus = {"metadata": {"namespace": "monitoring", "labels": labels}}
    others = [
        {"metadata": {"namespace": "monitoring", "labels": {"app": "grafana"}}},
        {"metadata": {"namespace": "default", "labels": labels}},
    ]

    assert pods
    for target in pods:
        reached = [port for port in PORTS if admits(policies, prometheus, target, port)]
        assert reached == ([names.MASTER_PORT] if kind == "ElasticJob" else [])
        assert not any(admits(policies, other, target, port) for other in others for port in PORTS)


def test_nodes_that_a_master_asks_for_are_guarded_too() -> None:
    """Pods that a master requests by a ScalePlan are covered by the policy: the master and the pods reach
    each other."""
    world = guarded_world()
    world.add(make_example("ElasticJob"))
    world.settle()
    world.set_pod("elasticjob-digits-dlrover-master-0", "Running")
    world.add(auto_plan("digits", 0, 1))
    world.settle()
    policies, pods = of_kind(world, "NetworkPolicy"), of_kind(world, "Pod")
    stranger = {"metadata": {"namespace": NAMESPACE, "labels": {names.JOB_LABEL: "another"}}}

    assert len(pods) == 3
    for target in pods:
        assert all(admits(policies, source, target, 3333) for source in pods)
        assert not admits(policies, stranger, target, 3333)


@pytest.mark.parametrize("kind", KIND_CASES)
def test_no_pod_is_made_before_its_policy(kind: str) -> None:
    """The policy is created once, before the pods, and is owned by the job."""
    world = guarded_world()
    job = world.add(make_example(kind))
    name = job["metadata"]["name"]
    for _ in range(5):
        kinds = [one["kind"] for one in world.decide(kind, name).create]
        if "Pod" in kinds:
            break
        world.reconcile()
    assert kinds.index("NetworkPolicy") < kinds.index("Pod")
    world.settle()

    (policy,) = of_kind(world, "NetworkPolicy")
    assert policy["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    world.delete(kind, name)
    assert not of_kind(world, "NetworkPolicy")


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_policy_that_is_lost_is_made_anew(kind: str) -> None:
    """A lost policy is created again, like all objects of a job."""
    world = guarded_world()
    world.add(make_example(kind))
    world.settle()
    (policy,) = of_kind(world, "NetworkPolicy")
    world.delete("NetworkPolicy", policy["metadata"]["name"])
    world.settle()
    assert of_kind(world, "NetworkPolicy")


@pytest.mark.parametrize("kind", KIND_CASES)
def test_without_its_policy_a_job_has_no_pod_and_says_why(kind: str) -> None:
    """A job gets no pods while its NetworkPolicy can't be created, because the API server refuses it or
    another object has its name; then the job starts."""
    world = guarded_world()
    job = world.add(make_example(kind))
    name = names.network_policy_name(kind, job["metadata"]["name"])
    world.refuse[name] = Refusal("NetworkPolicy", name, invalid=False, message="forbidden")
    for _ in range(5):
        world.reconcile()
    assert not of_kind(world, "Pod")
    assert job["status"]["reason"] == "CreateRefused"
    assert name in job["status"]["message"]

    world.refuse.clear()
    foreign = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
    world.add(foreign)
    world.settle()
    assert not of_kind(world, "Pod")
    assert job["status"]["reason"] == "NameConflict"

    world.delete("NetworkPolicy", name)
    world.settle()
    assert of_kind(world, "Pod")
    assert job["status"]["reason"] != "NameConflict"


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_job_on_its_nodes_network_has_no_policy(kind: str) -> None:
    """Pods on the host network have the addresses of their nodes, which a policy can't match. It would keep
    workers from their own master, so there is none."""
    world = guarded_world()
    job = make_example(kind)
    if kind == "TrainingJob":
        job["spec"]["host_network"] = True
    else:
        on_nodes_network(job["spec"])
    world.add(job)
    world.settle()
    assert of_kind(world, "Pod")
    assert not of_kind(world, "NetworkPolicy")


def on_nodes_network(value: Any) -> None:
    """Make each template below ask for its node's network."""
    if isinstance(value, dict):
        if "containers" in value:
            value["hostNetwork"] = True
        for below in value.values():
            on_nodes_network(below)
    elif isinstance(value, list):
        for below in value:
            on_nodes_network(below)


@pytest.mark.parametrize("kind", KIND_CASES)
def test_an_installation_may_go_without(kind: str) -> None:
    """With `--no-network-policies`, no policy is created and none is watched."""
    world = JobsNamespace()
    world.add(make_example(kind))
    world.settle()
    assert not of_kind(world, "NetworkPolicy")
    assert of_kind(world, "Pod")
    assert "NetworkPolicy" not in {source.api.kind for source in kind_of(kind).observes}
    assert "NetworkPolicy" in {source.api.kind for source in kind_of(kind).isolated().observes}
