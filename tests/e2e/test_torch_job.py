"""Collective jobs of PyTorch on the embedded cluster: scaled by pipeline stages, and killed."""

import collections
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.clients.environments import python_environment
from tests.e2e.collective_jobs import TORCH, CollectiveJob, CollectiveTraining, losses, worlds
from tests.e2e.records import RECORDS, trained

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

EPOCHS = 60
START_SECONDS = 300.0
"""To some steps of a job: its processes import PyTorch on a machine that may have two busy cores."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def torch_training(folder: Path, delay: float) -> CollectiveTraining:
    """The training, by an interpreter that has PyTorch."""
    folder.mkdir()
    return CollectiveTraining(
        TORCH,
        folder,
        EPOCHS,
        delay,
        rendezvous={"maxNodes": 4, "waitingTimeoutSeconds": 5},
        python=str(python_environment("torch")),
    )


def undisturbed(cluster: Cluster, folder: Path) -> dict[int, float]:
    """The loss of each step of a run with one worker."""
    training = torch_training(folder, 0.0)
    job = CollectiveJob.submit(cluster, training.manifest("undisturbed"))
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)
    (pod,) = [pod["metadata"]["name"] for pod in job.pods(names.WORKER_TYPE)]
    return losses(job, [pod])


def test_workers_come_go_and_die_under_training(cluster: Cluster, tmp_path: Path) -> None:
    """A job grows from 1 to 3 workers, one is killed and replaced, and then it has 2 and 4 workers. Each
    record of each epoch is trained exactly once, each loss is within 1e-12 of that of an undisturbed run, and
    the first worker keeps its process."""
    expected = undisturbed(cluster, tmp_path / "undisturbed")
    training = torch_training(tmp_path / "elastic", 0.3)
    job = CollectiveJob.submit(cluster, training.manifest("elastic"))
    job.wait_step(20, START_SECONDS)
    more = job.scale(3, START_SECONDS)
    *_, newest = pods = sorted(job.running(names.WORKER_TYPE))
    job.kill(newest)
    folder = tmp_path / "elastic"
    job.until(lambda: list(worlds(folder).values())[-1] == 2, START_SECONDS, "the survivors train")
    job.until(lambda: list(worlds(folder).values())[-1] == 3, START_SECONDS, "the replacement is let in")
    plans = [more, job.scale(2, START_SECONDS), job.scale(4, START_SECONDS)]
    job.until(lambda: list(worlds(folder).values())[-1] == 4, START_SECONDS, "four workers train")
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)

    assert all(plan.status.stall_seconds is not None for plan in plans)
    assert set(worlds(folder).values()) >= {1, 2, 3, 4}  # a step that was made again has notes of both groups
    assert trained(folder) == collections.Counter(
        (epoch, record) for epoch in range(1, EPOCHS + 1) for record in range(RECORDS)
    )
    files = folder.glob("records-worker-0-*")
    assert len({file.name.rpartition("-")[2] for file in files}) == 1, "one process"
    curve = losses(job, pods)
    assert curve.keys() == expected.keys()
    assert max(abs(curve[step] - expected[step]) for step in curve) < 1e-12
