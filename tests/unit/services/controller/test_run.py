"""The controller as a whole, with the real kinds, against the embedded API server."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client, events
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import (
    CONFIG_MAPS,
    ELASTIC_JOBS,
    LEASES,
    PODS,
    SCALE_PLANS,
    SECRETS,
    SERVICES,
    Scope,
)
from edl_workflows.runtime.process.leader import Election
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import Controller, RunOptions
from edl_workflows.testing import ApiServerProcess
from tests.controller_thread import RunningController, run_in_thread
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import auto_plan, crds, elastic_job, names_of, status_of


@pytest.fixture
def options(cluster: Cluster) -> RunOptions:
    """For the test's namespace."""
    return RunOptions(manager=ManagerOptions(namespaces=NamespaceSelection.of(cluster.namespace)))


@pytest.fixture
def controller(cluster: Cluster, options: RunOptions) -> Iterator[RunningController]:
    """A running one."""
    running = run_in_thread(cluster, options)
    assert running.wait_ready(240)
    yield running
    running.stop()


def test_a_controller_that_decides_nothing_exports_no_figures(cluster: Cluster) -> None:
    """A replica on standby exports no figures of decisions, not even zeros: they would count beside those of
    the replica that decides."""
    metrics = Controller(cluster, RunOptions()).metrics
    families = {family.name: family.samples for family in metrics.registry.collect()}
    for name in ("unallocated_jobs", "autoscaler_jobs", "progress_period_seconds"):
        assert families[f"edl_controller_{name}"] == []


def test_a_job_gets_its_children(cluster: Cluster, controller: RunningController) -> None:
    """A new job gets its master with all that it needs, owned by the job, and a phase."""
    job = client.create(cluster, elastic_job())
    eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")

    found = [
        obj
        for resource in (PODS, SERVICES, SECRETS, CONFIG_MAPS)
        for obj in client.list_objects(cluster, Scope(resource, cluster.namespace)).items
    ]
    assert {"Pod", "Service", "Secret", "ConfigMap"} == {obj["kind"] for obj in found}
    assert {job["metadata"]["uid"]} == {obj["metadata"]["ownerReferences"][0]["uid"] for obj in found}
    assert status_of(cluster, "mnist")["observedGeneration"] == 1


def test_an_auto_plan_makes_its_pods(cluster: Cluster, controller: RunningController) -> None:
    """The pods that the master's plan asks for are created once, and the plan succeeds."""
    client.create(cluster, elastic_job(workers=2))
    client.create(cluster, auto_plan("mnist", 0, 1))

    eventually(lambda: client.get(cluster, SCALE_PLANS, "plan").get("status", {}).get("phase") == "Succeeded")
    pods = names_of(cluster, Scope(PODS, cluster.namespace))
    assert {names.node_name("mnist", "worker", 0), names.node_name("mnist", "worker", 1)} <= set(pods)


def test_phase_follows_the_master(cluster: Cluster, controller: RunningController) -> None:
    """The master's pod becoming Running and then ending is the job's Running and Succeeded."""
    client.create(cluster, elastic_job())
    eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")
    (master,) = names_of(cluster, Scope(PODS, cluster.namespace))
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    client.patch_status(cluster, PODS, master, running)
    eventually(lambda: status_of(cluster, "mnist").get("phase") == "Running")
    client.patch_status(cluster, PODS, master, {"phase": "Succeeded"})

    eventually(lambda: status_of(cluster, "mnist").get("phase") == "Succeeded")
    assert status_of(cluster, "mnist")["completionTime"]


def test_a_name_clash_is_told(cluster: Cluster, controller: RunningController) -> None:
    """A foreign object with the name of a child is left alone, and the job's status names it."""
    name = names.state_config_map_name("mnist")
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "1"}}
    client.create(cluster, foreign)
    client.create(cluster, elastic_job())

    eventually(lambda: status_of(cluster, "mnist").get("reason") == "NameConflict")
    assert name in status_of(cluster, "mnist")["message"]
    assert client.get(cluster, CONFIG_MAPS, name)["data"] == {"x": "1"}


def test_other_namespaces_are_left_alone(cluster: Cluster, controller: RunningController) -> None:
    """A controller of one namespace does nothing in another."""
    other = cluster.in_namespace("default")
    client.create(other, elastic_job("elsewhere"))
    client.create(cluster, elastic_job())

    eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")
    assert status_of(other, "elsewhere") == {}


@pytest.mark.slow
def test_a_second_controller_takes_over(cluster: Cluster, options: RunOptions) -> None:
    """Of two controllers only the leader works. When it ends, the other one takes over at once."""
    election = Election(cluster.namespace, identity="first", retry_seconds=0.1)
    first = run_in_thread(cluster, replace(options, election=election))
    assert first.wait_ready(240)
    second = run_in_thread(cluster, replace(options, election=replace(election, identity="second")))
    try:
        client.create(cluster, elastic_job("one"))
        eventually(lambda: status_of(cluster, "one").get("phase") == "Pending")
        assert not second.wait_ready(0)
        first.stop()
        client.create(cluster, elastic_job("two"))

        eventually(lambda: status_of(cluster, "two").get("phase") == "Pending")
        assert client.get(cluster, LEASES, "edl-controller")["spec"]["holderIdentity"] == "second"
    finally:
        first.stop()
        second.stop()


@pytest.mark.slow
def test_crds_that_come_later(tmp_path: Path) -> None:
    """Without the CRDs the controller waits and says what for. When they are installed, it works."""
    server = ApiServerProcess(tmp_path)
    server.start()
    cluster = server.cluster()
    running = run_in_thread(cluster)
    try:
        lacking = {f"not listed yet: {kind.source.api.plural}" for kind in KINDS}
        eventually(lambda: set(running.controller.manager.waits_for()) == lacking)
        assert not running.wait_ready(0)
        for crd in crds():
            client.create(cluster, crd)
        assert running.wait_ready(240)
        client.create(cluster, elastic_job())

        eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")
    finally:
        running.stop()
        server.kill()


def test_scale_of_a_job_becomes_a_plan(cluster: Cluster, controller: RunningController) -> None:
    """`kubectl scale` of a job, by its scale subresource, is carried out as a manual ScalePlan."""
    client.create(cluster, elastic_job())
    eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")

    client.patch(cluster, ELASTIC_JOBS, "mnist", {"spec": {"replicas": 3}}, subresource="scale")

    eventually(lambda: bool(names_of(cluster, Scope(SCALE_PLANS, cluster.namespace))))
    (plan,) = client.list_objects(cluster, Scope(SCALE_PLANS, cluster.namespace)).items
    assert plan["spec"]["replicaResourceSpecs"] == {"worker": {"replicas": 3}}


@pytest.mark.slow
def test_a_malformed_job_fails_once(tmp_path: Path) -> None:
    """If an older schema of the API server admits a malformed job, the job fails once with all its problems,
    and other jobs continue."""
    server = ApiServerProcess(tmp_path)
    server.start()
    running: RunningController | None = None
    try:
        cluster = server.cluster()
        for crd in crds():
            for version in crd["spec"]["versions"]:
                lax = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                version["schema"]["openAPIV3Schema"] = lax
            client.create(cluster, crd)
        running = run_in_thread(cluster)
        bad = elastic_job("bad")
        bad["spec"] |= {"replicaSpeks": {}, "suspend": "perhaps"}
        created = client.create(cluster, bad)
        client.create(cluster, elastic_job("good"))

        eventually(lambda: status_of(cluster, "bad").get("phase") == "Failed")
        eventually(lambda: status_of(cluster, "good").get("phase") == "Pending")
        message = status_of(cluster, "bad")["message"]
        assert "did you mean 'replicaSpecs'" in message
        assert "spec.suspend" in message
        assert [event["count"] for event in events.of_object(cluster, created)] == [1]
    finally:
        if running is not None:
            running.stop()
        server.kill()


@pytest.mark.slow
def test_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    """The API server dies while the controller works. When it is back, the controller continues, and nothing
    is created twice."""
    server = ApiServerProcess(tmp_path)
    server.start()
    running: RunningController | None = None
    try:
        cluster = server.cluster()
        for crd in crds():
            client.create(cluster, crd)
        running = run_in_thread(cluster)
        assert running.wait_ready(240)
        for index in range(20):
            client.create(cluster, elastic_job(f"job-{index}"))
        server.kill()
        server.start()

        eventually(lambda: all(_pending(cluster, index) for index in range(20)))
        eventually(lambda: len(names_of(cluster, Scope(PODS, "default"))) >= 20)
        eventually(lambda: running.controller.manager.idle)
        pods = client.list_objects(cluster, Scope(PODS, "default")).items
        assert len({pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods}) == len(pods) == 20
    finally:
        if running is not None:
            running.stop()
        server.kill()


def _pending(cluster: Cluster, index: int) -> bool:
    return status_of(cluster, f"job-{index}").get("phase") == "Pending"
