"""An API server with our kinds, a namespace for each test, and nodes."""

import uuid
from collections.abc import Iterator

import pytest

from edl_workflows.core.kubernetes.api import NODES
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from tests.airflow import support
from tests.unit.services.controller.farm import Farm
from tests.unit.services.controller.support import names_of

cluster, server = support.cluster, support.own_server


@pytest.fixture
def farm(cluster: Cluster) -> Iterator[Farm]:
    """No nodes yet."""
    made = Farm(cluster, uuid.uuid4().hex[:8])
    yield made
    for name in names_of(cluster, Scope(NODES, label_selector=f"farm={made.key}")):
        client.delete(cluster, NODES, name)
