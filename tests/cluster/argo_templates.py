"""The installed templates, for tests on the real Argo controller."""

from typing import Any

import pytest

from tests.cluster.argo_runs import Argo

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
def here(templates: Argo) -> Argo:
    """Our templates in a namespace whose jobs no controller looks at."""
    return templates


def role_spec(replicas: int = 1) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "none:1"}]}}
    return {"replicas": replicas, "template": template}
