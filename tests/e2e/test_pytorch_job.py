"""PyTorchJobs as users run them: embedded cluster, controller and real processes, with real kills."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import EdlError
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.any_job import kill_processes
from tests.e2e.other_operator import hand_over_a_job
from tests.e2e.pytorch_jobs import SUM, TorchTraining
from tests.e2e.submitted import Container

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

LOCAL = Container("local", sys.executable)
WAIT = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
told = {key: value for key, value in os.environ.items() if key.startswith("PET_")}
written = folder / (os.environ["HOSTNAME"] + ".new")
written.write_text(json.dumps(told))
written.rename(written.with_suffix(".json"))  # whole, for who reads as soon as it is there
while not (folder / "end").exists():
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    with local_cluster.cluster(
        tmp_path_factory.mktemp("cluster"), local_cluster.Settings(controller=True, grace=5.0)
    ) as running:
        yield running.client()


@pytest.mark.smoke
def test_a_master_and_workers(cluster: Cluster, tmp_path: Path) -> None:
    """Pods find each other by their environment; a killed worker is replaced; after a change of replicas all
    pods restart with the new WORLD_SIZE; the job succeeds with its master."""
    job = TorchTraining(cluster, "sum", tmp_path)
    program = (str(SUM), "--folder", str(tmp_path), "--steps", "150", "--step-delay", "0.1")
    job.submit(LOCAL, *program, spec={}, Master=1, Worker=2)
    job.until(lambda: len(job.steps()) > 5, 60, "they meet")
    assert {(world, total) for _, world, total in job.steps()} == {(3, 3)}

    kill_processes(HOSTNAME="sum-worker-1")
    job.until(lambda: job.restarted("sum-worker-1") == 137, 30, "the worker is replaced")
    job.until(lambda: job.restarted("sum-master-0") == 138, 30, "the others begin anew")

    before = job.uids()
    job.scale(worker=3)
    job.until(lambda: not set(before.values()) & set(job.uids().values()), 60, "all pods are new")
    job.until(lambda: bool(job.steps()), 60, "they meet again")
    assert {(world, total) for _, world, total in job.steps()} == {(4, 6)}
    assert job.steps()[0][0] > 1, "it went on where it was"
    job.await_success()

    assert (tmp_path / "steps").read_text() == "150"


def test_a_job_of_another_operator_is_taken_over_on_request(cluster: Cluster) -> None:
    """The pod that training-operator made stays until the job is handed over."""
    hand_over_a_job(cluster, "theirs", {"image": "local", "command": ["sleep", "600"]})


def test_an_elastic_job(cluster: Cluster, tmp_path: Path) -> None:
    """Workers are added and removed within the bounds without a restart of the others, and each gets
    torchrun's rendezvous. Numbers out of bounds are rejected. The job succeeds when all workers have."""
    job = TorchTraining(cluster, "elastic", tmp_path)
    policy = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d", "maxRestarts": 5}
    job.submit(LOCAL, "-c", WAIT, str(tmp_path), spec={"elasticPolicy": policy}, Worker=2)
    pods = ["elastic-worker-0", "elastic-worker-1", "elastic-worker-2"]
    job.until(lambda: len(list(tmp_path.glob("*.json"))) == 2, 60, "both run")
    first = job.uids()

    job.scale(worker=3)
    job.until(lambda: len(list(tmp_path.glob("*.json"))) == 3, 60, "the third runs")
    told = [json.loads((tmp_path / f"{pod}.json").read_text()) for pod in pods]
    assert first.items() < job.uids().items()
    assert {(one["PET_NNODES"], one["PET_RDZV_BACKEND"], one["PET_MAX_RESTARTS"]) for one in told} == {
        ("1:3", "c10d", "5")
    }
    assert len({one["PET_RDZV_ENDPOINT"] for one in told}) == 1, "all meet at one place"
    with pytest.raises(EdlError, match="from 1 to 3"):
        job.scale(worker=4)

    job.scale(worker=1)
    job.until(lambda: job.uids() == {pods[0]: first[pods[0]]}, 60, "the others are gone")
    (tmp_path / "end").touch()
    job.await_success()
