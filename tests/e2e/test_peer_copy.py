"""A lost machine with the only model on it: another node holds the newest copy, and training goes on from
there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.collective_jobs import RING, CollectiveJob, CollectiveTraining, worlds
from tests.e2e.records import consumed, trained
from tests.e2e.test_collective_job import each_once

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

NEVER = "3600"
EPOCHS = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An embedded cluster with its controller."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def test_lost_chief_takes_no_copy_with_it(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 is killed with its agent before any checkpoint was stored, and its memory is lost. The agent of
    the next rank 0 persists the copy that it holds. Training continues from there, and each record is
    trained exactly once."""
    training = CollectiveTraining(RING, tmp_path, epochs=EPOCHS, workers=3)
    manifest = training.manifest("machines")
    (container,) = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
    container["command"] += ["--save-seconds", NEVER, "--memory-seconds", "0.2", "--replicate"]
    job = CollectiveJob.submit(cluster, manifest)
    job.wait_step(60)
    pods = job.running(names.WORKER_TYPE)
    job.until(lambda: any("holding a copy of step" in job.log(pod) for pod in pods), 60, "the second copy")
    job.wait_step(120)
    assert job.get().status.checkpoint is None

    (chief,) = (pod for pod in pods if f"of {len(pods)} loss" in job.log(pod))  # rank 0 alone says so
    job.kill(chief)
    job.until(lambda: list(worlds(tmp_path).values())[-1] == 2, 120, "the survivors train")
    saved = job.get().status.checkpoint
    assert saved is not None
    assert saved.step is not None
    assert saved.step >= 60
    resumed = min(step for name, _, step, _ in consumed(tmp_path) if "-v1-" not in name)
    assert resumed == saved.step + 1
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)

    assert trained(tmp_path) == each_once(EPOCHS)
