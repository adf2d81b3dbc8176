"""One embedded cluster for all tests of what it does with pods."""

from collections.abc import Iterator

import pytest

from edl_workflows.local.testing import LocalCluster, cluster
from tests.unit.local.support import Pods


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The cluster."""
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def pods(local: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """Pods of a namespace of the test's own."""
    from edl_workflows.kube import client
    from edl_workflows.kube.resources import NAMESPACES

    name = f"test-{abs(hash(request.node.nodeid)) % 10**10}"
    admin = local.client()
    client.create(admin, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield Pods(admin.in_namespace(name))
    client.delete(admin, NAMESPACES, name)
