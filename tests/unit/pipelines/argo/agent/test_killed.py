"""A real agent process, killed with SIGKILL at each point of a step: the next one goes on, with the same
job."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.testing import ApiServerProcess
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.argo.agent.killed import POINTS
from tests.unit.pipelines.argo.agent.support import Argo, body

_ROOT = Path(__file__).parents[5]
_SECONDS = 240.0


@contextmanager
def agent(
    server: ApiServerProcess, cluster: Cluster, point: str = "never"
) -> Iterator[subprocess.Popen[bytes]]:
    """An agent's process for the handle's namespace; see `killed`."""
    command = [sys.executable, "-m", "tests.unit.pipelines.argo.agent.killed", point]
    command += ["--kubeconfig", str(server.kubeconfig), "--namespace", cluster.namespace]
    command += ["--no-leader-elect", "--metrics-port", "0"]
    process = subprocess.Popen(command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("point", [*POINTS, "waiting"])
def test_a_killed_agent_is_succeeded_by_the_next(
    server: ApiServerProcess, cluster: Cluster, argo: Argo, stand_in: StandIn, point: str
) -> None:
    """Whenever the agent is killed, one job is created and the step gets its result."""
    argo.start("w")
    argo.add("w", "n1", body("submit", manifest=elastic_job()))
    with agent(server, cluster, point) as first:
        if point != "before-begin":
            eventually(lambda: "mnist" in jobs(cluster), "the job", _SECONDS)
        if point == "waiting":
            eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == "Running", "it runs")
            first.kill()
        elif point.endswith("report"):
            stand_in.end("mnist")
        assert first.wait(_SECONDS) == -signal.SIGKILL
    before = {name: job["metadata"]["uid"] for name, job in jobs(cluster).items()}
    stand_in.end("mnist")
    if point == "after-report":
        assert argo.take("w", "n1")["phase"] == "Succeeded"
        argo.add("w", "n2", body("collect", name="mnist"))
    with agent(server, cluster):
        node = "n2" if point == "after-report" else "n1"
        eventually(lambda: argo.result("w", node) is not None, "answered", _SECONDS)
    assert argo.result("w", node)["phase"] == "Succeeded"
    after = {name: job["metadata"]["uid"] for name, job in jobs(cluster).items()}
    assert set(after) == {"mnist"}
    assert before in ({}, after)
