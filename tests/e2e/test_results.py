"""What a training function returns while the job's master is killed: the result is not lost, and the job
does not end without it."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions, render_job
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.submitted import SubmittedJob

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

FUNCTION = """
def train(folder):
    import os, time
    from pathlib import Path

    rank = int(os.environ["RANK"])
    (Path(folder) / f"returns-{rank}").write_text(str(os.getpid()))
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)
    return {"rank": rank}
"""
WORKERS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An embedded cluster with its controller."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def submit(cluster: Cluster, folder: Path) -> SubmittedJob:
    """A job whose workers each call the function, and return when they may."""
    program = TrainingProgram.of_function(FUNCTION, {"folder": str(folder)})
    manifest = render_job(program, ProgramOptions(workers=WORKERS, python=sys.executable))
    manifest["metadata"]["name"] = "returns"
    request = SubmitRequest(manifest=manifest, program=program)
    return SubmittedJob(cluster, SUBMIT.begin(cluster, request, StageIdentity(owner="tests/results")).name)


def processes_of(pod: str) -> list[psutil.Process]:
    """All processes of a pod."""
    every = psutil.process_iter(["environ"])
    return [one for one in every if (one.info["environ"] or {}).get(names.ENV_POD_NAME) == pod]


def reports(folder: Path, rank: int, port: int) -> bool:
    """Whether a worker's process has sent its result to the master: a request that nobody answers."""
    process = psutil.Process(int((folder / f"returns-{rank}").read_text()))
    return any(one.raddr[1:] == (port,) for one in process.net_connections("tcp"))


def test_a_master_that_dies_with_a_result_in_its_hands(cluster: Cluster, tmp_path: Path) -> None:
    """The master dies when both workers have sent their results and none is stored. They send them to the
    next master, and the job succeeds with the result of rank 0."""
    job = submit(cluster, tmp_path)
    job.until(lambda: len(list(tmp_path.glob("returns-*"))) == WORKERS, 240, "both are about to return")
    (master,) = job.running(names.MASTER_TYPE)
    stopped = processes_of(master)
    ports = {one.laddr.port for process in stopped for one in listening(process)}
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    asked = [(rank, port) for rank in range(WORKERS) for port in ports]
    job.until(
        lambda: {rank for rank, port in asked if reports(tmp_path, rank, port)} == set(range(WORKERS)),
        60,
        "both have sent their results",
    )
    assert job.get().status.result == ""
    for process in stopped:
        os.kill(process.pid, signal.SIGKILL)
    job.wait_phase(JobPhase.SUCCEEDED)

    status = job.get().status
    assert json.loads(status.result) == {"rank": 0}
    assert status.master_restarts >= 1


def listening(process: psutil.Process) -> list[Any]:
    """The sockets at which a process takes requests."""
    return [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
