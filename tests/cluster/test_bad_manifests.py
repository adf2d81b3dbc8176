"""Wrong manifests of every kind on a real API server, with our definitions and a controller behind them."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError, NotFoundError
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.wait import until
from tests.cluster.training import Place
from tests.unit.core.jobs import (
    test_di_job_model,
    test_pytorch_job_model,
    test_tf_job_model,
    test_training_job_model,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TABLES = (test_tf_job_model, test_pytorch_job_model, test_training_job_model, test_di_job_model)
ROWS = [
    pytest.param(table.make, row.values[0], row.values[1], id=f"{table.make()['kind']}-{row.id}")
    for table in TABLES
    for row in table.BAD
]


@pytest.mark.parametrize("make", [table.make for table in TABLES], ids=lambda make: make()["kind"])
def test_the_manifest_without_the_change_is_accepted(here: Place, make: Callable[[], dict[str, Any]]) -> None:
    """What is wrong in the other test is the change alone."""
    manifest = make()
    manifest["metadata"].pop("namespace", None)
    manifest["metadata"].pop("uid", None)

    assert client.create(here.cluster, manifest, dry_run=True)["kind"] == manifest["kind"]


@pytest.mark.parametrize(("make", "change", "message"), ROWS)
def test_a_wrong_manifest_starts_nothing(
    here: Place, make: Callable[[], dict[str, Any]], change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """Either the API server rejects the manifest, or the controller fails the job with a reason that names
    the field. No pod is created."""
    manifest = make()
    change(manifest)
    manifest["metadata"].pop("namespace", None)
    manifest["metadata"].pop("uid", None)
    try:
        made = client.create(here.cluster, manifest)
    except (InvalidError, NotFoundError):
        return

    api = kind_of(made["kind"]).source.api
    try:
        until(lambda: _status(here.cluster, made).get("reason") == "InvalidSpec", "the job fails", 30)
        status = _status(here.cluster, made)
        assert status["phase"].lower() == "failed"
        assert re.search(message, f"{made['kind']} {made['metadata']['name']}: {status['message']}")
        scope = resources.Scope(resources.PODS, here.cluster.namespace)
        assert client.list_objects(here.cluster, scope).items == []
    finally:
        client.delete(here.cluster, api, made["metadata"]["name"])


def _status(cluster: Cluster, made: dict[str, Any]) -> dict[str, Any]:
    api = kind_of(made["kind"]).source.api
    found: dict[str, Any] = client.get(cluster, api, made["metadata"]["name"]).get("status") or {}
    return found
