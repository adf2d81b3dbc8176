"""``edl timeline``: from the history in a job's status."""

import datetime as dt
from pathlib import Path

import pytest

from edl_workflows.cli.root import run
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import ELASTIC_JOBS
from edl_workflows.testing import ApiServerProcess
from tests.airflow.support import elastic_job

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def options(server: ApiServerProcess, cluster: Cluster) -> list[str]:
    """A finished job with a history, and how to reach it."""
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
    """Printed, each point of the history is a row."""
    assert run(["timeline", *options]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 21
    assert lines[-1].split() == ["95", "950", "190", "ps", "2", "worker", "1"]


def test_picture(options: list[str], tmp_path: Path) -> None:
    """Drawn, it is a picture of the kind that the file's name says."""
    path = tmp_path / "told.svg"

    assert run(["timeline", *options, "--picture", str(path)]) == 0
    assert "<svg" in path.read_text()


def test_odd_picture_name(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A picture of no known kind is refused with what would do."""
    assert run(["timeline", *options, "--picture", str(tmp_path / "told.doc")]) == 2
    assert ".png or .svg" in capsys.readouterr().err
