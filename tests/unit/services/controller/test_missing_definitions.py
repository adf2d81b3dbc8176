"""A controller of all kinds in a cluster that lacks the definitions of some."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.kubernetes.api import CRDS, EVENTS, ApiResource
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.waiting.ownership import resource_of
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Scope
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import RunOptions
from edl_workflows.testing import ApiServerProcess
from tests.cases.kinds import KIND_CASES
from tests.controller_thread import RunningController, run_in_thread
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import crds, elastic_job

MISSING = ("tfjobs", "scaleplans")
DEFINITIONS = {"tfjobs.kubeflow.org", "scaleplans.elastic.iml.github.io"}
TF_JOBS, PYTORCH_JOBS = resource_of("TFJob"), resource_of("PyTorchJob")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServerProcess]:
    """One for this test, since definitions are shared by all namespaces; it lacks two of them."""
    server = ApiServerProcess(tmp_path)
    server.start()
    for crd in crds():
        if crd["spec"]["names"]["plural"] not in MISSING:
            client.create(server.cluster(), crd)
    yield server
    server.kill()


@pytest.fixture
def cluster(server: ApiServerProcess) -> Cluster:
    """The server, as its administrator."""
    return server.cluster()


@pytest.fixture(params=[NamespaceSelection(), NamespaceSelection(("default", "kube-public"))], ids=str)
def controller(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[RunningController]:
    """A running one of all kinds, for all namespaces or for two."""
    running = run_in_thread(cluster, RunOptions(manager=ManagerOptions(request.param)))
    yield running
    running.stop()


@pytest.mark.slow
def test_the_other_kinds_are_served(
    server: ApiServerProcess, cluster: Cluster, controller: RunningController
) -> None:
    """Without TFJob's definition, the other kinds are reconciled, the controller is ready, and a metric and
    an Event name what is missing. ElasticJobs, whose masters need ScalePlans, wait for these. Both come by
    themselves when their definitions do, and a definition that is deleted stops only its own kind."""
    client.create(cluster, elastic_job())
    create_example(cluster, "PyTorchJob", "first")

    eventually(lambda: is_served(cluster, PYTORCH_JOBS, "first"))
    assert controller.controller.manager.waits_for() == []
    assert missing_kinds(controller) == {"TFJob", "ScalePlan"}
    eventually(lambda: events_about_definitions(cluster) == DEFINITIONS)
    assert not is_served(cluster, ELASTIC_JOBS, "mnist")

    for crd in crds():
        if crd["spec"]["names"]["plural"] in MISSING:
            client.create(cluster, crd)
    create_example(cluster, "TFJob", "second")
    eventually(lambda: is_served(cluster, TF_JOBS, "second") and is_served(cluster, ELASTIC_JOBS, "mnist"))
    assert missing_kinds(controller) == set()

    client.delete(cluster, CRDS, "tfjobs.kubeflow.org")
    server.kill()  # ends the watches, as Kubernetes does when a definition is deleted
    server.start()
    eventually(lambda: missing_kinds(controller) == {"TFJob"})
    create_example(cluster, "PyTorchJob", "third")
    eventually(lambda: is_served(cluster, PYTORCH_JOBS, "third"))


def create_example(cluster: Cluster, kind: str, name: str) -> None:
    """Create the example of a kind."""
    manifest: dict[str, Any] = deepcopy(KIND_CASES[kind].example)
    manifest["metadata"]["name"] = name
    client.create(cluster, manifest)


def is_served(cluster: Cluster, resource: ApiResource, name: str) -> bool:
    """Whether the controller has written a job's status."""
    return bool(client.get(cluster, resource, name).get("status"))


def events_about_definitions(cluster: Cluster) -> set[str]:
    """The definitions that Events name as missing."""
    events = client.list_objects(cluster, Scope(EVENTS, "default")).items
    return {event["involvedObject"]["name"] for event in events if event["reason"] == "DefinitionMissing"}


def missing_kinds(controller: RunningController) -> set[str]:
    """The kinds whose definition is missing, by the metric."""
    families = controller.controller.metrics.registry.collect()
    return {
        sample.labels["kind"]
        for family in families
        for sample in family.samples
        if sample.name == "edl_controller_definition_missing" and sample.value == 1
    }
