"""Wrong manifests of every kind on a real API server, with our definitions and a controller behind them."""

import copy
import re
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError, NotFoundError
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.cases.kind import KindCases, Manifest, Mistake
from tests.cases.kinds import KIND_CASES
from tests.cluster.bed.wait import until
from tests.cluster.training import Place

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MISTAKES = [
    pytest.param(cases, mistake, id=f"{kind}-{mistake.name}")
    for kind, cases in KIND_CASES.items()
    for mistake in cases.mistakes
]


def make_example(cases: KindCases) -> Manifest:
    """The kind's example, in no namespace."""
    manifest = copy.deepcopy(cases.example)
    manifest["metadata"].pop("namespace", None)
    return manifest


@pytest.mark.parametrize("kind", [kind for kind, cases in KIND_CASES.items() if cases.mistakes])
def test_the_manifest_without_the_mistake_is_accepted(here: Place, kind: str) -> None:
    """What is wrong in the other test is the mistake alone."""
    manifest = make_example(KIND_CASES[kind])

    assert client.create(here.cluster, manifest, dry_run=True)["kind"] == kind


@pytest.mark.parametrize(("cases", "mistake"), MISTAKES)
def test_a_wrong_manifest_starts_nothing(here: Place, cases: KindCases, mistake: Mistake) -> None:
    """Either the API server rejects the manifest, or the controller fails the job with a reason that names
    the field. No pod is created."""
    manifest = make_example(cases)
    mistake.change(manifest)
    try:
        made = client.create(here.cluster, manifest)
    except (InvalidError, NotFoundError):
        return

    api = kind_of(made["kind"]).source.api
    try:
        until(lambda: _status(here.cluster, made).get("reason") == "InvalidSpec", "the job fails", 30)
        status = _status(here.cluster, made)
        assert status["phase"].lower() == "failed"
        assert re.search(mistake.message, f"{made['kind']} {made['metadata']['name']}: {status['message']}")
        scope = resources.Scope(resources.PODS, here.cluster.namespace)
        assert client.list_objects(here.cluster, scope).items == []
    finally:
        client.delete(here.cluster, api, made["metadata"]["name"])


def _status(cluster: Cluster, made: dict[str, Any]) -> dict[str, Any]:
    api = kind_of(made["kind"]).source.api
    found: dict[str, Any] = client.get(cluster, api, made["metadata"]["name"]).get("status") or {}
    return found
