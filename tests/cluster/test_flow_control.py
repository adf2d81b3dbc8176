"""The FlowSchemas of an installation on a real API server: which requests are in which priority level."""

import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install import flow_control
from edl_workflows.pipelines.install.options import InstallOptions
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.installed import apply, make_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

MASTER = names.master_account_name("mnist")
MATCHED_HEADER = "X-Kubernetes-PF-FlowSchema-UID"
"""Of each answer of an API server; it is sent with refusals, too."""


@dataclass(frozen=True)
class Matched:
    """An API server with the FlowSchemas of an installation.

    Attributes:
        bed: with the API server.
        options: of the installation.
    """

    bed: Bed
    options: InstallOptions

    @property
    def jobs_namespace(self) -> str:
        """A namespace with jobs of the installation."""
        return f"{self.options.namespace}-jobs"

    def schema_of(self, namespace: str, account: str, path: str) -> str:
        """Name of the FlowSchema of a service account's request."""
        cluster = Cluster.from_kubeconfig(self.bed.kubeconfig)
        token = {"Authorization": f"Bearer {self.bed.token(namespace, account)}"}
        trusted = ssl.create_default_context(cafile=cluster.api_client.configuration.ssl_ca_cert)
        with httpx.Client(base_url=cluster.server, verify=trusted, headers=token) as connection:
            uid = connection.get(path).headers[MATCHED_HEADER]
        listed = self.bed.kubectl(
            "get",
            "flowschemas",
            "-o",
            r'jsonpath={range .items[*]}{.metadata.uid}={.metadata.name}{"\n"}{end}',
        )
        return dict(line.split("=") for line in listed.split())[uid]


@pytest.fixture(params=["one-namespace", "two-namespaces", "selector", "all-namespaces"])
def matched(request: pytest.FixtureRequest, bed: Bed, cluster: Cluster) -> Iterator[Matched]:
    """FlowSchemas, and the accounts that they are about. The priority levels stay, since installations of
    other tests use them."""
    own = f"test-{uuid.uuid4().hex[:6]}"
    jobs = f"{own}-jobs"
    selection = {
        "one-namespace": NamespaceSelection((jobs,)),
        "two-namespaces": NamespaceSelection((jobs, f"{own}-more")),
        "selector": NamespaceSelection(selector=f"kubernetes.io/metadata.name in ({jobs})"),
        "all-namespaces": NamespaceSelection(),
    }[request.param]
    options = InstallOptions("registry.example/edl:1", own, selection)
    installation = Matched(bed, options)
    schemas = list(flow_control.flow_schemas(options))
    accounts = {own: (names.CONTROLLER, "default"), installation.jobs_namespace: (MASTER,)}
    try:
        for namespace, created in accounts.items():
            make_namespace(cluster, namespace, {})
            for name in set(created) - {"default"}:
                account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
                client.create(cluster, account, namespace)
        apply(bed, [*flow_control.priority_levels(), *schemas])
        until(lambda: _in_force(bed, schemas[-1]["metadata"]["name"]), "the FlowSchemas are in force")
        yield installation
    finally:
        for schema in schemas:
            bed.kubectl("delete", "flowschema", schema["metadata"]["name"], "--ignore-not-found")
        for namespace in accounts:
            client.delete(cluster, resources.NAMESPACES, namespace)


def _in_force(bed: Bed, name: str) -> bool:
    status = 'jsonpath={.status.conditions[?(@.type=="Dangling")].status}'
    return bed.kubectl("get", "flowschema", name, "-o", status) == "False"


def test_requests_are_in_the_level_of_their_program(matched: Matched) -> None:
    """A master's requests are in the masters' FlowSchema, those of the controller in its own, and those for
    its Lease in another, so that they don't wait for each other. Requests of other accounts are in none of
    them."""
    jobs, own = matched.jobs_namespace, matched.options.namespace
    plans = f"/apis/{names.GROUP}/v1alpha1/namespaces/{jobs}/scaleplans"
    pods, leases = f"/api/v1/namespaces/{jobs}/pods", f"/apis/coordination.k8s.io/v1/namespaces/{own}/leases"

    named = matched.options.name_in_cluster
    masters = named(flow_control.MASTERS)
    assert matched.schema_of(jobs, MASTER, plans) == masters
    expected = masters if matched.options.jobs_namespaces.names else "service-accounts"
    assert matched.schema_of(jobs, MASTER, pods) == expected
    controller = named(names.CONTROLLER)
    assert {matched.schema_of(own, names.CONTROLLER, path) for path in (plans, pods)} == {controller}
    assert matched.schema_of(own, names.CONTROLLER, leases) == named(flow_control.ELECTIONS)
    assert matched.schema_of(own, "default", pods) == "service-accounts"
