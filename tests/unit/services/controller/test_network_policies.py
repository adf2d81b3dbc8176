"""Policies of jobs by the controller as a whole, against the embedded API server."""

from collections.abc import Iterator

import pytest

from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CRDS, NETWORK_POLICIES, PODS, Scope
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import RunOptions
from tests.controller_thread import run_in_thread
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import elastic_job, names_of, status_of

NAME = f"{NETWORK_POLICIES.plural}.{NETWORK_POLICIES.group}"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    # Kubernetes keeps its own groups for definitions that it has reviewed, and asks for the proof.
    "metadata": {"name": NAME, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
    "spec": {
        "group": NETWORK_POLICIES.group,
        "names": {"kind": NETWORK_POLICIES.kind, "plural": NETWORK_POLICIES.plural},
        "scope": "Namespaced",
        "versions": [
            {
                "name": NETWORK_POLICIES.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


@pytest.fixture
def policies(cluster: Cluster) -> Iterator[None]:
    """The embedded server has no pod network and no NetworkPolicies: here it keeps them, as a real
    one does.
    """
    client.create(cluster, DEFINITION)
    yield
    client.delete(cluster, CRDS, NAME)


@pytest.mark.usefixtures("policies")
def test_a_job_gets_its_policy_once(cluster: Cluster) -> None:
    """The job has its policy as soon as its first pod exists, and a lost policy is created again. Once all
    objects exist, the controller is idle."""
    settings = InstallationSettings(network_policies=True)
    running = run_in_thread(
        cluster,
        RunOptions(manager=ManagerOptions(NamespaceSelection.of(cluster.namespace), settings=settings)),
    )
    try:
        assert running.wait_ready(240)
        client.create(cluster, elastic_job())
        eventually(lambda: bool(names_of(cluster, Scope(PODS, cluster.namespace))))
        eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")
        (policy,) = client.list_objects(cluster, Scope(NETWORK_POLICIES, cluster.namespace)).items
        assert policy["metadata"]["name"] == "mnist-elasticjob"
        eventually(lambda: running.controller.manager.idle)

        client.delete(cluster, NETWORK_POLICIES, "mnist-elasticjob")
        eventually(
            lambda: names_of(cluster, Scope(NETWORK_POLICIES, cluster.namespace)) == ["mnist-elasticjob"]
        )
    finally:
        running.stop()
