"""An API server for all tests of the layer, and one that answers as a test says."""

from collections.abc import Iterator

import pytest
import stamina

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.testing import ApiServerProcess, api_server
from tests.unit.runtime.kube.support import ScriptedApi


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    """One API server; tests keep apart by namespaces."""
    with api_server(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def cluster(server: ApiServerProcess, request: pytest.FixtureRequest) -> Cluster:
    """A handle in a namespace of the test's own."""
    handle = server.cluster()
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
    return handle.in_namespace(client.create(handle, manifest)["metadata"]["name"])


@pytest.fixture
def scripted() -> Iterator[ScriptedApi]:
    """A server that says what the test wants; calls are repeated without waiting."""
    api = ScriptedApi()
    stamina.set_testing(True, attempts=3)
    yield api
    stamina.set_testing(False)
    api.close()
