"""What earlier agents began, on clusters where not every kind is installed."""

from pathlib import Path

from edl_workflows.pipelines.argo.agent.orphans import list_begun
from edl_workflows.pipelines.waiting.identity import (
    ATTEMPT_ANNOTATION,
    ON_CANCEL_ANNOTATION,
    OWNER_ANNOTATION,
)
from edl_workflows.runtime.kube import client
from edl_workflows.testing import api_server
from tests.unit.services.controller.support import crds, elastic_job


def test_a_kind_that_is_not_installed_has_no_objects(tmp_path: Path) -> None:
    """If only some kinds are installed, objects of these are found, and the missing kinds are no error."""
    marks = {OWNER_ANNOTATION: "argo/default/train/1234/n1", ATTEMPT_ANNOTATION: "n1@2026-01-01T00:00:00Z",
             ON_CANCEL_ANNOTATION: "delete"}  # fmt: skip
    job = elastic_job()
    job["metadata"]["annotations"] = marks
    with api_server(tmp_path) as server:
        cluster = server.cluster()
        for crd in crds():
            if crd["spec"]["names"]["kind"] == "ElasticJob":
                client.create(cluster, crd)
        client.create(cluster, job)

        found = list_begun(cluster, "default", lambda _key: True)

    assert [one.handle.name for one in found] == ["mnist"]
