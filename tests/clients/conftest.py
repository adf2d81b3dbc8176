"""One embedded cluster with its controller for all clients; each test has a namespace of its own."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES
from tests.local_cluster import LocalCluster, Settings, cluster

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They start real processes, and the first run builds the clients."""
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The cluster."""
    with cluster(tmp_path_factory.mktemp("clients"), Settings(controller=True)) as found:
        yield found


@pytest.fixture
def handle(local: LocalCluster) -> Iterator[Cluster]:
    """Our own client, in a namespace of the test's own."""
    admin, name = local.client(), f"client-{uuid.uuid4().hex[:8]}"
    client.create(admin, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield admin.in_namespace(name)
    client.delete(admin, NAMESPACES, name)
