"""All manifests that we make, as tests of several kinds take them."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.pipelines.argo.templates import catalog
from edl_workflows.pipelines.argo.templates.serializer import to_manifest
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.argo.templates.workflows import TemplateOptions

WAYS: tuple[WaitMode, ...] = ("resource", "plugin")
EXAMPLES = (
    "example-elastic-training",
    "example-collective-training",
    "example-sweep",
    "example-artifact",
)
"""Pipelines in ``dags/argo``; the file of each is named as it is."""
VALUES = {
    "spec": "replicaSpecs: {worker: {replicas: 1}}\n",
    "image": "train:1",
    "evaluate": "evaluate $EDL_CHECKPOINT_URI",
    "promote": "promote $EDL_CHECKPOINT_URI",
}
"""What the author of a schedule gives."""


def products() -> list[Any]:
    """A case for each product of the catalog and each way to wait, and for one of cluster scope: (name,
    options)."""
    found = [
        pytest.param(
            product.name,
            TemplateOptions(way, parameters={} if product.usual else VALUES),
            id=f"{product.name}-{way}",
        )
        for product in catalog.PRODUCTS
        for way in WAYS
    ]
    return [
        *found,
        pytest.param(
            "elastic-train", TemplateOptions("plugin", cluster_scope=True), id="elastic-train-cluster"
        ),
    ]


def example(way: WaitMode, name: str = EXAMPLES[0]) -> dict[str, Any]:
    """An example pipeline as an Argo workflow."""
    file = Path(__file__).parents[2] / "dags" / "argo" / f"{name.replace('-', '_')}.py"
    found = importlib.util.spec_from_file_location("argo_example", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return to_manifest(module.pipeline(way))
