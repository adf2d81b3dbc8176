"""The installed templates, for tests on the real Argo controller."""

from collections.abc import Iterator
from typing import Any

import pytest

from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.argo_runs import Argo, argo
from tests.cluster.bed.bed import Bed

PRODUCTS = (
    "edl-stages",
    "edl-clean-up",
    "elastic-train",
    "elastic-train-and-scale",
    "elastic-scale",
    "elastic-planned-scale",
    "ps-checkpoint-migrate-restart",
    "elastic-retrain",
)
CHECKPOINT = {"uri": "/models/digits/7", "step": 7, "time": "2026-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def here(
    bed: Bed, cluster: Cluster, module_namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Argo]:
    """Our templates in a namespace whose jobs no controller looks at."""
    mine = cluster.in_namespace(module_namespace)
    with argo(bed, mine, PRODUCTS, tmp_path_factory.mktemp("argo")) as running:
        yield running


def role_spec(replicas: int = 1) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "none:1"}]}}
    return {"replicas": replicas, "template": template}
