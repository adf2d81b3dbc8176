"""TrainingJobs as users run them: embedded cluster, controller and TensorFlow, with real kills."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.jobs.training_job.model import Phase
from edl_workflows.kube.connect import Cluster
from edl_workflows.local import testing
from tests.e2e.submitted import Container
from tests.e2e.training_jobs import Job, manifest, trainers_come_and_die

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = Container("local", sys.executable)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    with testing.cluster(
        tmp_path_factory.mktemp("cluster"), testing.Settings(controller=True, grace=5.0)
    ) as running:
        yield running.client()


def test_trainers_come_and_die_and_every_chunk_is_trained(cluster: Cluster, tmp_path: Path) -> None:
    """Trainers take chunks from the master and send gradients to two pservers. Meanwhile a trainer is killed and replaced,
    trainers are added and taken away, the master and a pserver are killed. Every chunk of every pass is acknowledged once,
    the job succeeds, and the model is good."""
    passes = 16
    job = Job.submit(cluster, manifest("digits-tj", tmp_path, PYTHON, 0.4, passes), tmp_path)
    trainers_come_and_die(job, passes)
    assert job.accuracy() >= 0.9


def test_a_program_that_never_works_fails_the_job_with_its_words(cluster: Cluster, tmp_path: Path) -> None:
    """A trainer that always crashes uses the budget up; the job says how it ended and what it printed."""
    wanted = manifest("crash-tj", tmp_path, PYTHON, 0, 1, failurePercent=0)
    wanted["spec"]["trainer"]["entrypoint"] = "echo no such data >&2; exit 3"
    job = Job.submit(cluster, wanted, tmp_path)
    job.until_over(60)
    status = job.get().status
    assert (status.phase, status.reason) == (Phase.FAILED, "TooManyTrainersFailed")
    assert "exit code 3: no such data" in status.message
