"""``edl timeline``, from the history in a job's status."""

import datetime as dt
from pathlib import Path

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.root import run
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, SCALE_PLANS
from edl_workflows.testing import ApiServerProcess
from tests.airflow.support import elastic_job

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def options(server: ApiServerProcess, cluster: Cluster) -> list[str]:
    """A finished job with a history, and the options to reach it."""
    client.create(cluster, elastic_job("told"))
    points = [
        {
            "time": (BEGAN + dt.timedelta(seconds=5 * n)).isoformat(),
            "step": 50 * n,
            "records": 10 * n,
            "nodes": {"ps": 2, "worker": 1},
        }
        for n in range(20)
    ]
    client.patch_status(cluster, ELASTIC_JOBS, "told", {"phase": "Succeeded", "history": points})
    return ["told", "--kubeconfig", str(server.kubeconfig), "--namespace", cluster.namespace]


def test_table_has_a_row_a_point(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row for each point of the history."""
    assert run(["timeline", *options]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 21
    assert lines[-1].split() == ["95", "950", "10.0", "190", "ps", "2", "worker", "1"]


def test_a_running_job_says_until_when_its_points_are(
    cluster: Cluster, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The points of a running job are a sample that is written rarely; one that has ended has all."""
    assert run(["timeline", *options]) == 0
    assert "a sample" not in capsys.readouterr().err
    client.create(cluster, elastic_job("runs"))
    points = client.get(cluster, ELASTIC_JOBS, "told")["status"]["history"]
    client.patch_status(cluster, ELASTIC_JOBS, "runs", {"phase": "Running", "history": points})

    assert run(["timeline", "runs", *options[1:]]) == 0
    assert "a sample until 2026-01-01 00:01:35 UTC" in capsys.readouterr().err


def test_text_has_restarts_and_the_steps_of_plans(
    cluster: Cluster, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Restarts and steps of plans are listed in chronological order, so that the text has what the picture
    shows."""
    restart = {
        "time": (BEGAN + dt.timedelta(seconds=31)).isoformat(),
        "subject": "worker-1",
        "cause": "OOMKilled",
    }
    failure = restart | {
        "time": (BEGAN + dt.timedelta(seconds=33)).isoformat(),
        "cause": "FatalError",
        "replaced": False,
    }
    goodput = {"ratio": 0.9, "seconds": {"queued": 9, "training": 131}}
    known = {"restarts": {"counts": {"OOMKilled": 1}, "recent": [restart, failure]}, "goodput": goodput}
    client.patch_status(cluster, ELASTIC_JOBS, "told", known)
    plan = {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": "told-scale"},
        "spec": {"ownerJob": "told"},
    }
    client.create(cluster, plan)
    start, end = ((BEGAN + dt.timedelta(seconds=at)).isoformat() for at in (41, 44))
    client.patch_status(
        cluster,
        SCALE_PLANS,
        "told-scale",
        {"phase": "Succeeded", "steps": [{"phase": "Scaling", "startTime": start, "finishTime": end}]},
    )

    assert run(["timeline", *options]) == 0
    captured = capsys.readouterr()
    lines = [line.split(maxsplit=1) for line in captured.out.splitlines()]

    assert [time for time, _ in lines[7:13]] == ["30", "31", "33", "35", "40", "41"]
    assert ["31", "worker-1 restarts: OOMKilled"] in lines
    assert ["33", "worker-1 fails: FatalError"] in lines
    assert ["41", "told-scale: Scaling, 3.0 s"] in lines
    assert "goodput 90%" in captured.err
    assert "time by cause: training 0:02:11, queued 0:00:09" in captured.err


def test_text_has_the_metrics(
    cluster: Cluster, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics have a column, which is missing if the job has none."""
    points = [
        {
            "time": (BEGAN + dt.timedelta(seconds=5)).isoformat(),
            "step": 50,
            "metrics": {"acc": 0.5, "loss": 2},
        },
        {"time": (BEGAN + dt.timedelta(seconds=10)).isoformat(), "step": 60},
    ]
    client.patch_status(cluster, ELASTIC_JOBS, "told", {"history": points})

    assert run(["timeline", *options]) == 0
    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[-2:] == ["METRICS", "EVENT"]
    assert first[-4:] == ["loss", "2,", "acc", "0.5"]
    assert "loss" not in second


def test_a_list_of_jobs_has_their_newest_metrics(
    cluster: Cluster, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The list has a column for metrics if any job reports some, with two of each job, so that a row stays a
    line."""
    assert run(["get", *options]) == 0
    assert "METRICS" not in capsys.readouterr().out
    progress = {"step": 60, "metrics": {"acc": 0.5, "auc": 0.6, "loss": 2, "z": 1}}
    client.patch_status(cluster, ELASTIC_JOBS, "told", {"progress": progress})

    assert run(["get", *options]) == 0
    assert "loss 2, acc 0.5, 2 more" in capsys.readouterr().out


def test_picture(options: list[str], tmp_path: Path) -> None:
    """The picture has the format that the file's suffix says."""
    path = tmp_path / "told.svg"

    assert run(["timeline", *options, "--picture", str(path)]) == 0
    assert "<svg" in path.read_text()


def test_odd_picture_name(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown suffix is rejected with a message that names the known ones."""
    assert run(["timeline", *options, "--picture", str(tmp_path / "told.doc")]) == 2
    assert ".png or .svg" in capsys.readouterr().err
