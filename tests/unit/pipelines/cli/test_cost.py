"""``edl cost``."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS
from tests.airflow.support import elastic_job
from tests.unit.pipelines.cli.edl_command import Edl, tf_job

NOW = datetime.now(UTC).replace(microsecond=0)


def text(hours: float) -> str:
    """The moment so many hours ago."""
    return (NOW - timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


def create_job(cluster: Cluster, name: str, owner: str = "", **usage: Any) -> dict[str, Any]:
    """An ElasticJob with an account until ten hours ago."""
    job = elastic_job(name)
    job["metadata"]["annotations"] = {names.OWNER_ANNOTATION: owner}
    made = client.create(cluster, job)
    client.patch_status(
        cluster, ELASTIC_JOBS, name, {"phase": "Running", "usage": {"time": text(10), **usage}}
    )
    return made


def create_pod(cluster: Cluster, job: dict[str, Any], bound: float, ended: float) -> None:
    """A pod of a job, with two cores, from one moment to another, in hours ago."""
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "2"}}}
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"], "controller": True}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job['metadata']['name']}-worker-0",
            "labels": {names.JOB_LABEL: job["metadata"]["name"], names.REPLICA_TYPE_LABEL: "worker"},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    client.create(cluster, pod)
    state = {"startedAt": text(bound), "finishedAt": text(ended), "exitCode": 0}
    status = {
        "phase": "Succeeded",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": text(bound)}],
        "containerStatuses": [{"name": "main", "state": {"terminated": state}}],
    }
    client.patch_status(cluster, PODS, pod["metadata"]["name"], status)


@pytest.fixture
def jobs(cluster: Cluster) -> None:
    """Two jobs of a DAG, one of a person, one of another kind that has held nothing."""
    dag = "airflow/digits/run/train/-1"
    create_job(cluster, "a", dag, gpu={"useful": 7200, "lost": 1800}, cpu={"useful": 3600})
    b = create_job(cluster, "b", dag, cpu={"useful": 3600, "overhead": 900})
    create_pod(cluster, b, 11, 7)
    create_job(cluster, "c", "cli/ada@laptop/0f", memory={"unknown": 36_000})
    client.create(cluster, tf_job("d"))


def test_costs_of_jobs(edl_alone: Edl, cluster: Cluster, jobs: None) -> None:
    """Each job has its hours and what of them was useful and lost; the hours of pods since the account was
    written are added; the last row is the sum."""
    code, out, err = edl_alone("cost", "-o", "json")
    assert code == 0, err
    costs = {cost["job"]: cost for cost in json.loads(out)}
    assert list(costs) == ["a", "b", "c", "d"]
    assert costs["a"]["pipeline"] == "airflow/digits"
    assert costs["a"]["hours"]["gpu"] == {"useful": 2.0, "lost": 0.5, "overhead": 0.0, "unknown": 0.0}
    assert costs["b"]["hours"]["cpu"] == {"useful": 1.0, "lost": 0.0, "overhead": 0.25, "unknown": 6.0}
    assert costs["c"]["hours"]["memory"]["unknown"] == 10.0

    header, *rows, total = edl_alone("cost")[1].splitlines()
    assert header.split()[:5] == ["NAMESPACE", "JOB", "KIND", "PIPELINE", "GPU-HOURS"]
    assert rows[0].split()[4:] == ["2.50", "2.00", "0.50", "1.00", "1.00"]
    assert total.split() == ["total", "2.50", "2.00", "0.50", "8.25", "2.00", "10.00"]


def test_costs_of_groups(edl_alone: Edl, cluster: Cluster, jobs: None) -> None:
    """Jobs are summed by pipeline or namespace; jobs that no pipeline has created are one group."""
    by_pipeline = json.loads(edl_alone("cost", "--by", "pipeline", "-o", "json")[1])
    assert [group["pipeline"] for group in by_pipeline] == ["", "airflow/digits"]
    assert by_pipeline[1]["hours"]["cpu"]["useful"] == 2.0
    (namespace,) = json.loads(edl_alone("cost", "--by", "namespace", "-o", "json")[1])
    assert namespace["namespace"] == cluster.namespace
    assert sum(namespace["hours"]["cpu"].values()) == 8.25


def test_the_cost_of_a_job(edl_alone: Edl, cluster: Cluster, jobs: None) -> None:
    """One job can be named; an unknown name is an error."""
    (cost,) = json.loads(edl_alone("cost", "a", "-o", "json")[1])
    assert cost["job"] == "a"
    code, _, err = edl_alone("cost", "nobody")
    assert code == 3
    assert "nobody" in err
