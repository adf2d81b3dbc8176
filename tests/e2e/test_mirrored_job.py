"""Collective jobs of TensorFlow on the embedded cluster, changed under training by pipeline stages."""

import collections
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.collective_jobs import MIRRORED, CollectiveJob, CollectiveTraining, losses, worlds
from tests.e2e.records import RECORDS, evaluate, trained

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1500),
]

EPOCHS = 60
START_SECONDS = 300.0
"""To some steps of a job: its processes import TensorFlow on a machine that may have two cores, and busy
ones."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def fixed(cluster: Cluster, folder: Path) -> dict[int, float]:
    """The losses of a run with one worker that nobody disturbs."""
    training = CollectiveTraining(MIRRORED, folder, EPOCHS, delay=0.0)
    job = CollectiveJob.submit(cluster, training.manifest("fixed"))
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)
    (pod,) = [pod["metadata"]["name"] for pod in job.pods(names.WORKER_TYPE)]
    return losses(job, [pod])


def test_workers_come_and_go_under_training(cluster: Cluster, tmp_path: Path) -> None:
    """The scale stage changes 1 to 3 to 2 workers during training. Each record of each epoch is trained
    exactly once, each step has the loss of an undisturbed run, and so has the final accuracy within 1 %."""
    folders = {name: tmp_path / name for name in ("fixed", "elastic")}
    for folder in folders.values():
        folder.mkdir()
    expected = fixed(cluster, folders["fixed"])

    training = CollectiveTraining(MIRRORED, folders["elastic"], EPOCHS, delay=0.3)
    job = CollectiveJob.submit(cluster, training.manifest("elastic"))
    job.wait_step(20, START_SECONDS)
    (oldest,) = job.running(names.WORKER_TYPE)
    plans = [job.scale(3, START_SECONDS), job.scale(2, START_SECONDS)]
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)

    assert all(plan.status.stall_seconds is not None for plan in plans)
    assert set(worlds(folders["elastic"]).values()) == {1, 2, 3}
    assert trained(folders["elastic"]) == collections.Counter(
        (epoch, record) for epoch in range(1, EPOCHS + 1) for record in range(RECORDS)
    )
    curve = losses(job, [oldest])
    assert curve.keys() == expected.keys()
    assert max(abs(curve[step] - expected[step]) for step in curve) < 1e-4
    accuracy = {name: evaluate(folder)["accuracy"] for name, folder in folders.items()}
    assert accuracy["fixed"] >= 0.93
    assert accuracy["elastic"] == pytest.approx(accuracy["fixed"], abs=0.01)
