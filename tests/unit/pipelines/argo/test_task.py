"""What a plugin step's body means: `edl_workflows.pipelines.argo.plugin_task`."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError
from edl_workflows.pipelines.argo.plugin_task import PluginTask
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS
from edl_workflows.pipelines.stages.scale import SCALE


def test_texts_are_read_as_what_the_request_wants() -> None:
    """Argo passes every value as text. Numbers, maps and lists are parsed, and empty texts count as not
    given."""
    body = {
        "stage": "scale",
        "request": {"job": "mnist", "namespace": "", "replicas": "{worker: {replicas: 3}}"},
    }
    stage, request = PluginTask.parse(body).stage_and_request()
    assert stage is SCALE
    assert request == SCALE.request.of({"job": "mnist", "replicas": {"worker": {"replicas": 3}}})

    body = {"stage": "migrate-ps", "request": {"job": "m", "replicas": "3", "migrate": "{'0': {cpu: 100m}}"}}
    stage, request = PluginTask.parse(body).stage_and_request()
    assert request == MIGRATE_PS.request.of({"job": "m", "replicas": 3, "migrate": {0: {"cpu": "100m"}}})


def test_a_manifest_may_be_a_text_or_a_map() -> None:
    """A manifest with placeholders is text until Argo has filled it in. Numbers stay numbers."""
    text = "{apiVersion: v1, kind: ElasticJob, spec: {replicas: 3}}"
    as_map = {"apiVersion": "v1", "kind": "ElasticJob", "spec": {"replicas": 3}}
    _, one = PluginTask.parse({"stage": "submit", "request": {"manifest": text}}).stage_and_request()
    _, other = PluginTask.parse({"stage": "submit", "request": {"manifest": as_map}}).stage_and_request()
    assert one == other


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param({}, "plugin.edl.stage", id="no stage"),
        pytest.param({"stage": "fly"}, "'fly' is not a stage; the stages are submit", id="unknown stage"),
        pytest.param({"stage": "wait", "onCancel": "explode"}, "plugin.edl.onCancel", id="unknown policy"),
        pytest.param({"stage": "wait", "rquest": {}}, "plugin.edl.rquest", id="unknown field"),
        pytest.param({"stage": "wait", "request": {"nam": "x"}}, "nam", id="unknown field of the request"),
        pytest.param({"stage": "wait", "request": {}}, "name", id="missing field of the request"),
        pytest.param({"stage": "wait", "request": {"name": "j", "step": "many"}}, "step", id="no number"),
        pytest.param(
            {"stage": "wait", "request": {"name": "j", "phases": "Running"}}, "request.phases", id="no list"
        ),
        pytest.param({"stage": "submit", "request": {"manifest": "{"}}, "request.manifest", id="no YAML"),
    ],
)
def test_a_wrong_body_is_refused_by_its_path(body: dict[str, Any], message: str) -> None:
    """Each mistake in a body gives one error that names the field."""
    with pytest.raises(EdlError, match=message):
        PluginTask.parse(body).stage_and_request()
