"""``edl plan``: what people and programs learn about a job's plan."""

import datetime as dt
import json
from typing import Any

import pytest

from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, HistoryPoint
from edl_workflows.pipelines.cli.jobs.plan import explain_plan, speeds_by_nodes
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import elastic_job
from tests.unit.pipelines.cli.edl_command import Edl

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
PLANNED = {
    "optimizer": "local",
    "stage": "job_stage_running",
    "replicaResourceSpecs": {"worker": {"replicas": 3, "resource": {"cpu": "2", "memory": "4Gi"}}},
    "migratePods": [{"name": "mnist-edljob-ps-0", "type": "ps", "resource": {"cpu": "4"}}],
    "reasons": {"worker": "3 workers gain", "mnist-edljob-ps-0": "it is hot"},
    "notes": ["ps: 2 are enough"],
    "time": "2026-01-01T11:58:00Z",
}


@pytest.fixture
def edl(edl_alone: Edl) -> Edl:
    """Runs `edl` where each status stays as the test writes it."""
    return edl_alone


def job(annotation: str = "", **status: Any) -> dict[str, Any]:
    """A job whose master has made a plan."""
    manifest = elastic_job("mnist") | {"status": {"autoscaling": PLANNED, **status}}
    if annotation:
        manifest["metadata"]["annotations"][autoscaling.ANNOTATION] = annotation
    return manifest


def test_a_plan_is_a_table(edl: Edl, cluster: Cluster) -> None:
    """The table has each role with its present and planned nodes, and each node that would be replaced."""
    client.create(cluster, elastic_job("mnist"))
    client.patch_status(
        cluster,
        ELASTIC_JOBS,
        "mnist",
        {"autoscaling": PLANNED, "replicaStatuses": {"worker": {"desired": 2}}},
    )

    code, out, err = edl("plan", "mnist", "--explain")

    assert code == 0, err
    lines = out.splitlines()
    assert [" ".join(line.split()) for line in lines[:4]] == [
        "ROLE NOW PLANNED SIZE REASON",
        "ps 2 2",
        "worker 2 3 cpu 2 memory 4Gi 3 workers gain",
        "mnist-edljob-ps-0 replaced cpu 4 it is hot",
    ]
    assert lines[4].startswith("Planned:     by the local optimizer in stage job_stage_running, for ")
    assert "Note:        ps: 2 are enough" in lines

    code, out, _ = edl("plan", "mnist", "-o", "json")
    data = json.loads(out)
    assert (code, data["now"], data["plan"]["replicas"]["worker"]["replicas"]) == (
        0,
        {"ps": 2, "worker": 2},
        3,
    )
    assert data["autoscale"] is None


@pytest.mark.parametrize(
    ("annotation", "applied"),
    [
        ("", "no: the annotation elastic.iml.github.io/autoscale is missing; `edl autoscale mnist` allows"),
        (
            "false",
            'no: the annotation elastic.iml.github.io/autoscale is "false"; `edl autoscale mnist` allows',
        ),
        ("true", "yes, by the job's master"),
        ("2-8", "yes, by the job's master, with 2 to 8 workers"),
        ("some", "no: 'some' must be"),
    ],
)
def test_whether_a_plan_is_applied(annotation: str, applied: str) -> None:
    """The text says whether plans are applied, by the job's annotation, and how to change that."""
    lines = list(explain_plan(ElasticJob.parse(job(annotation)), NOW))

    assert lines[0] == "Planned:     by the local optimizer in stage job_stage_running, for 2m"
    assert lines[1].startswith(f"Applied:     {applied}")


def test_what_a_plan_rests_on() -> None:
    """The explanation lists limits, roles that no plan changes, and the speed of the job by number of
    nodes."""
    manifest = job(
        progress={"step": 700, "speed": 4.5},
        history=[point(0, 0, worker=1), point(100, 200, worker=1), point(110, 210, worker=2),
        point(210, 700, worker=2)],
    )  # fmt: skip
    manifest["spec"]["replicaSpecs"]["ps"]["autoScale"] = False

    lines = list(explain_plan(ElasticJob.parse(manifest), NOW))

    assert lines[2:] == [
        "Limits:      cpu 100, memory 102400Mi, gpu 4",
        "Left alone:  ps (autoScale: false)",
        "Progress:    step 700, 4.50 steps/s",
        "Speed:       worker 1: 2.00 steps/s",
        "Speed:       worker 2: 4.90 steps/s",
        "Note:        ps: 2 are enough",
    ]


def point(second: int, step: int, **nodes: int) -> dict[str, Any]:
    """A point of a job's history."""
    return {"time": (NOW + dt.timedelta(seconds=second)).isoformat(), "step": step, "nodes": nodes}


@pytest.mark.parametrize(
    "points",
    [[], [point(0, 0)], [point(0, 5, worker=1), point(0, 9, worker=1)], [point(9, 5), point(0, 9)]],
    ids=["none", "one", "no time between", "clock set back"],
)
def test_a_history_that_tells_no_speed(points: list[dict[str, Any]]) -> None:
    """A history without a measured speed gives no speeds, and no division by zero."""
    assert speeds_by_nodes([HistoryPoint.model_validate(one) for one in points]) == []


@pytest.mark.parametrize(
    ("mode", "status", "code", "says"),
    [
        ("single-job", {}, 3, "has no plan yet"),
        ("manual", {"autoscaling": PLANNED}, 2, "--autoscaler-dry-run"),
        ("cluster", {"autoscaling": PLANNED, "phase": "Succeeded"}, 2, "has ended in phase Succeeded"),
    ],
)
def test_jobs_without_a_plan(
    edl: Edl, cluster: Cluster, mode: str, status: dict[str, Any], code: int, says: str
) -> None:
    """For a job without a plan, the command prints one line that says why there is none or where to look
    instead."""
    manifest = elastic_job("mnist")
    manifest["spec"]["optimizeMode"] = mode
    client.create(cluster, manifest)
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)

    found, out, err = edl("plan", "mnist")

    assert (found, out) == (code, "")
    assert says in err
    assert edl("plan", "nobody")[0] == 3
