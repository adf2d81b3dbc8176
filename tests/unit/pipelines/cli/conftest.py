"""The API server and the simulated controller, which the tests of stages use too, and `edl` there."""

from pathlib import Path

import pytest
import yaml

from edl_workflows.pipelines.cli.root import run
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.testing import ApiServerProcess
from tests.airflow import support
from tests.airflow.support import StandIn, elastic_job
from tests.unit.pipelines.cli.edl_command import Edl

cluster, server, stand_in = support.cluster, support.server, support.stand_in


@pytest.fixture
def edl_alone(server: ApiServerProcess, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Edl:
    """Runs `edl` in the test's namespace, where no controller changes a status."""

    def call(*arguments: str) -> tuple[int, str, str]:
        where = ["--kubeconfig", str(server.kubeconfig), "--namespace", cluster.namespace]
        code = run([*arguments, *where])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def edl(edl_alone: Edl, stand_in: StandIn) -> Edl:
    """Runs `edl` in the test's namespace, beside the simulated controller."""
    return edl_alone


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A file with the manifest of a job."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(elastic_job("mnist")))
    return path
