"""Collective jobs without any framework, on the embedded cluster: numpy over a ring of TCP connections, with
real kills."""

import collections
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND, ResumeRequest, SuspendRequest
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.collective_jobs import RING, CollectiveJob, CollectiveTraining, worlds
from tests.e2e.records import consumed, trained

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

RECORDS = 1797
"""All of the digits."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def each_once(epochs: int) -> "collections.Counter[tuple[int, int]]":
    """Each record of each epoch, once."""
    return collections.Counter((epoch, record) for epoch in range(1, epochs + 1) for record in range(RECORDS))


@pytest.mark.smoke
def test_workers_come_and_go_under_training(cluster: Cluster, tmp_path: Path) -> None:
    """The scale stage changes 1 to 3 to 2 workers during training. Each change is one plan with a measured
    stall, each record of each epoch is trained exactly once, and the job succeeds."""
    training = CollectiveTraining(RING, tmp_path, epochs=40)
    job = CollectiveJob.submit(cluster, training.manifest("rings"))
    job.wait_step(20)
    more = job.scale(3)
    assert len(job.running(names.WORKER_TYPE)) == 3
    assert more.status.stall_seconds is not None
    fewer = job.scale(2)
    assert fewer.status.checkpoint is not None
    assert fewer.status.resumed_step is not None
    assert fewer.status.resumed_step > fewer.status.checkpoint.step
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)

    assert set(worlds(tmp_path).values()) == {1, 2, 3}
    assert trained(tmp_path) == each_once(40)


@pytest.mark.long
def test_killed_member_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 is killed during training. The survivors continue from the newest checkpoint at once, the
    replacement joins between two steps, and no record is lost."""
    training = CollectiveTraining(RING, tmp_path, epochs=30, workers=3)
    job = CollectiveJob.submit(cluster, training.manifest("survivors"))
    job.wait_step(100)
    first, *_ = sorted(job.running(names.WORKER_TYPE))
    job.kill(first)
    job.until(lambda: list(worlds(tmp_path).values())[-1] == 2, 60, "the survivors train")
    job.until(lambda: list(worlds(tmp_path).values())[-1] == 3, 120, "the replacement is let in")
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)

    assert trained(tmp_path) == each_once(30)


@pytest.mark.long
def test_suspended_job_goes_on_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    """On a suspension, all members save the step that they have made together. After resuming, training
    continues with the next step, so that each record of each epoch is trained exactly once."""
    training = CollectiveTraining(RING, tmp_path, epochs=30, workers=2)
    job = CollectiveJob.submit(cluster, training.manifest("sleepers"))
    job.wait_step(30)
    job.run(SUSPEND, SuspendRequest(name=job.name))
    before = worlds(tmp_path)
    saved = job.get().status.checkpoint
    assert saved is not None
    assert saved.step == max(before)
    training.hurry()
    job.run(RESUME, ResumeRequest(name=job.name))
    job.wait_phase(JobPhase.SUCCEEDED)

    assert set(worlds(tmp_path).values()) == {2}
    made = collections.Counter((epoch, r) for _, epoch, _, records in consumed(tmp_path) for r in records)
    assert made == each_once(30)
