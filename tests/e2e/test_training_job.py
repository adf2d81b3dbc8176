"""TrainingJobs as users run them: embedded cluster, controller and TensorFlow, with real kills."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edl_workflows.core.jobs.training_job.model import TrainingJobPhase
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.submitted import Container
from tests.e2e.training_jobs import PaddleTraining, manifest, trainers_come_and_die

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = Container("local", sys.executable)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local_cluster.LocalCluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as found:
        yield found


@pytest.fixture
def cluster(running: local_cluster.LocalCluster) -> Cluster:
    """The administrator's connection."""
    return running.client()


@pytest.mark.long
def test_trainers_come_and_die_and_every_chunk_is_trained(cluster: Cluster, tmp_path: Path) -> None:
    """Trainers lease chunks from the master and send gradients to two pservers. Meanwhile a trainer is killed
    and replaced, trainers are added and removed, and the master and a pserver are killed. Every chunk of
    every pass is acknowledged once, the job succeeds, and the model is good."""
    passes = 16
    job = PaddleTraining.submit_manifest(
        cluster, manifest("digits-tj", tmp_path, PYTHON, 0.4, passes), tmp_path
    )
    trainers_come_and_die(job, passes)
    assert job.accuracy() >= 0.9


def test_a_program_that_never_works_fails_the_job_with_its_words(cluster: Cluster, tmp_path: Path) -> None:
    """A trainer that always crashes uses up its restarts. The job's message has the exit code and the
    output."""
    wanted = manifest("crash-tj", tmp_path, PYTHON, 0, 1, failurePercent=0)
    wanted["spec"]["trainer"]["entrypoint"] = "echo no such data >&2; exit 3"
    job = PaddleTraining.submit_manifest(cluster, wanted, tmp_path)
    job.until_over(60)
    status = job.get().status
    assert (status.phase, status.reason) == (TrainingJobPhase.FAILED, "TooManyTrainersFailed")
    assert "exit code 3: no such data" in status.message


@pytest.mark.smoke
def test_from_the_command_line(running: local_cluster.LocalCluster, tmp_path: Path) -> None:
    """Each `edl` command for jobs works with a TrainingJob."""

    def edl(command: str, *arguments: str) -> str:
        where = ["--kubeconfig", str(running.kubeconfig)]
        kind = [] if command == "submit" else ["--kind", "TrainingJob"]
        line = [sys.executable, "-m", "edl_workflows", command, *arguments, *kind, *where]
        found = subprocess.run(line, check=False, capture_output=True, text=True, timeout=120)
        assert found.returncode == 0, found.stderr
        return found.stdout

    wanted = manifest("shell-tj", tmp_path, PYTHON, 0, 1)
    for role in ("master", "pserver", "trainer"):
        wanted["spec"][role]["entrypoint"] = f"echo {role} $TRAINING_ROLE; exec sleep 1000"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(wanted))

    edl("submit", str(file))
    edl("wait", "shell-tj", "--for", "Running", "--timeout", "60")
    assert "shell-tj" in edl("get")
    edl("scale", "shell-tj", "trainer=3", "--wait", "--timeout", "60")
    assert "trainer TRAINER" in edl("logs", "shell-tj", "trainer-2")
    assert "master MASTER" in edl("logs", "shell-tj", "master-0")
    edl("migrate-ps", "shell-tj", "--replicas", "1", "--wait", "--timeout", "90")
    edl("suspend", "shell-tj", "--wait", "--timeout", "60")
    assert "suspended" in edl("describe", "shell-tj").lower()
    edl("resume", "shell-tj", "--wait", "--timeout", "60")
    edl("delete", "shell-tj")
    assert "shell-tj" not in edl("get")
