"""How OpenLineage is told of data sets and jobs."""

import sys
from typing import Any

import pytest

from edl_workflows.airflow.hooks import lineage
from edl_workflows.core.kubernetes.names import DATA_ANNOTATION
from edl_workflows.pipelines.waiting.outputs import OutputCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

NAMES = {
    "s3://bucket/data/train": ("s3://bucket", "data/train"),
    "gs://bucket": ("gs://bucket", "/"),
    "s3://key:secret@bucket/data?token=secret#secret": ("s3://bucket", "data"),
    "hdfs://namenode:8020/data": ("hdfs://namenode:8020", "data"),
    "/mnt/data": ("file", "/mnt/data"),
    "file:///mnt/data": ("file", "/mnt/data"),
    "file://host/mnt/data": ("file://host", "/mnt/data"),
}


@pytest.mark.parametrize("uri", NAMES)
def test_data_sets_have_the_names_of_the_convention(uri: str) -> None:
    """A data set has a namespace and a name by OpenLineage's convention, without secrets."""
    found = lineage._read([uri])

    assert [(one.namespace, one.name) for one in found] == [NAMES[uri]]


@pytest.mark.parametrize("uri", ["", "http://[broken"])
def test_what_is_no_uri_is_no_data_set(uri: str) -> None:
    """A value that is not a URI, which a program may report, gives no data set."""
    assert not lineage._read([uri])
    assert not lineage._written(OutputCheckpoint(uri=uri, step=1))


@pytest.mark.parametrize(
    ("manifest", "data"),
    [
        ({"metadata": {"annotations": {DATA_ANNOTATION: "s3://a/b, /c\n/d"}}}, ("s3://a/b", "/c", "/d")),
        ({"metadata": {"annotations": {DATA_ANNOTATION: "/x " * 1000}}}, ("/x",) * 100),
        ({"metadata": {"annotations": {}}}, ()),
        ({"metadata": {"annotations": None}}, ()),
        ({"metadata": []}, ()),
        ({}, ()),
    ],
    ids=["several", "too many", "none", "null", "no map", "empty"],
)
def test_the_annotation_names_the_data(manifest: dict[str, Any], data: tuple[str, ...]) -> None:
    """The annotation lists data sets, separated by spaces or commas, up to a limit."""
    assert lineage.declared_data(manifest) == data


def test_without_the_provider_nothing_is_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Airflow's OpenLineage provider, which is optional, nothing is emitted."""
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.api.core", None)
    event = lineage.JobEvent("START", "ElasticJob", "uid", "airflow/dag/run/task/-1")

    assert not lineage.is_active()
    lineage.emit_job_event(event)
