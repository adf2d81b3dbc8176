"""An API server with our kinds and Argo's, a namespace for each test, and in it Argo's half and a pretending
controller."""

from collections.abc import Iterator

import pytest

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.testing import ApiServerProcess, api_server
from tests.airflow import support as airflow
from tests.unit.pipelines.argo.agent.support import ARGO_CRDS, Argo
from tests.unit.services.controller.support import crds

cluster, stand_in = airflow.cluster, airflow.stand_in


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    """One API server; tests keep apart by namespaces."""
    with api_server(tmp_path_factory.mktemp("api")) as running:
        for crd in (*crds(), *ARGO_CRDS):
            client.create(running.cluster(), crd)
        yield running


@pytest.fixture
def argo(cluster: Cluster) -> Argo:
    """Argo's half of the world, in the test's namespace."""
    return Argo(cluster)
