"""An API server with our kinds, a namespace for each test, and a DI server on it."""

from collections.abc import Iterator

import pytest

from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.di_server.guard import Admission
from edl_workflows.services.di_server.server import DiServer, ServerOptions
from tests.airflow import support
from tests.unit.services.di_server.support import ADMIN, Api, eventually_ready

cluster, server = support.cluster, support.server


@pytest.fixture
def admission() -> Admission:
    """As by default, with an administrator."""
    return Admission(admin_token=ADMIN)


@pytest.fixture
def api(cluster: Cluster, admission: Admission) -> Iterator[Api]:
    """A running DI server, asked by the administrator."""
    running = DiServer(
        cluster,
        ServerOptions(namespaces=NamespaceSelection.of(cluster.namespace), port=0, admission=admission),
    )
    with running.serving() as url:
        eventually_ready(running)
        yield Api(url, cluster)
