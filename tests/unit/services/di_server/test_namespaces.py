"""A DI server for several namespaces, or for those with a label, by HTTP."""

import pytest

from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES
from edl_workflows.runtime.process.rate_limit import RateLimit
from edl_workflows.services.di_server.guard import Admission
from edl_workflows.services.di_server.server import DiServer, ServerOptions
from tests.unit.runtime.kube.support import eventually, refuse_lists
from tests.unit.services.di_server.support import ADMIN, Api, create, eventually_ready

pytestmark = pytest.mark.slow

UNLIMITED = RateLimit(1e9, 1e9)


@pytest.mark.parametrize("by_label", [False, True])
def test_jobs_of_the_namespaces_are_served_and_no_others(cluster: Cluster, by_label: bool) -> None:
    """Programs of jobs in each served namespace are answered, for all others the job does not exist. A
    namespace is served while it has the label."""
    manifests = ({"generateName": "test-", "labels": {"team": cluster.namespace}}, {"generateName": "test-"})
    second, other = (
        cluster.in_namespace(client.create(cluster, namespace)["metadata"]["name"])
        for namespace in (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata} for metadata in manifests
        )
    )
    label = {"metadata": {"labels": {"team": cluster.namespace}}}
    client.patch(cluster, NAMESPACES, cluster.namespace, label)
    for place in (cluster, second, other):
        create(place)
    selection = (
        NamespaceSelection(selector=f"team={cluster.namespace}")
        if by_label
        else NamespaceSelection((cluster.namespace, second.namespace))
    )
    admission = Admission(admin_token=ADMIN, per_client=UNLIMITED, per_job=UNLIMITED)
    running = DiServer(cluster, ServerOptions(namespaces=selection, port=0, admission=admission))
    with running.serving() as url:
        eventually_ready(running)

        def code(place: Cluster) -> int:
            api = Api(url, place)
            return api.ask("GET", api.path()).status_code

        assert [code(place) for place in (cluster, second, other)] == [200, 200, 404]
        if by_label:
            client.patch(cluster, NAMESPACES, other.namespace, label)
            eventually(lambda: code(other) == 200)
            client.patch(cluster, NAMESPACES, second.namespace, {"metadata": {"labels": {"team": None}}})
            eventually(lambda: code(second) == 404)


def test_a_namespace_that_may_not_be_read_stops_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the permissions in one of several namespaces are missing, the server is ready, and answers for jobs
    of the others. For jobs of this one it does when the permissions are there."""
    made = client.create(
        cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
    )
    refused = cluster.in_namespace(made["metadata"]["name"])
    for place in (cluster, refused):
        create(place)
    refusing = {refused.namespace}
    refuse_lists(monkeypatch, refusing)
    selection = NamespaceSelection((refused.namespace, cluster.namespace))
    admission = Admission(admin_token=ADMIN, per_client=UNLIMITED, per_job=UNLIMITED)
    running = DiServer(cluster, ServerOptions(namespaces=selection, port=0, admission=admission))
    with running.serving() as url:
        eventually(lambda: not running.waits_for())
        here, there = Api(url, cluster), Api(url, refused)
        assert here.ask("GET", here.path()).status_code == 200
        answer = there.ask("GET", there.path())
        assert answer.status_code == 503
        assert f"dijobs in namespace {refused.namespace}" in answer.json()["message"]

        refusing.clear()
        eventually(lambda: there.ask("GET", there.path()).status_code == 200)
