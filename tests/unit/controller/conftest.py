"""An API server with the kinds installed, and a namespace for each test."""

from collections.abc import Iterator

import pytest

from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.testing import ApiServerProcess, api_server
from tests.unit.controller.support import crds


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    """One API server; tests keep apart by namespaces."""
    with api_server(tmp_path_factory.mktemp("api")) as running:
        for crd in crds():
            client.create(running.cluster(), crd)
        yield running


@pytest.fixture
def cluster(server: ApiServerProcess) -> Cluster:
    """A handle in a namespace of the test's own."""
    handle = server.cluster()
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
    return handle.in_namespace(client.create(handle, manifest)["metadata"]["name"])
