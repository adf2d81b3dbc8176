"""Programs that don't use this package's library, under ``edl agent run``: they form their group from the
environment."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.collective_jobs import CollectiveJob, CollectiveTraining

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parent / "socket_group.py"
SUM = "25"
"""Of what two members say in five rounds."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def submit(cluster: Cluster, name: str, folder: Path) -> CollectiveJob:
    """Two workers that run the program."""
    rendezvous = {"waitingTimeoutSeconds": 60}
    training = CollectiveTraining(PROGRAM, folder, epochs=1, workers=2, rendezvous=rendezvous)
    return CollectiveJob.submit(cluster, training.manifest(name))


def starts(folder: Path, rank: int) -> list[list[str]]:
    """World size and sum of each start of a rank."""
    file = folder / f"starts-{rank}"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def restarts(job: CollectiveJob) -> dict[str, int]:
    """How many nodes were replaced, by reason."""
    said = job.get().status.restarts
    return said.counts if said is not None else {}


def finished(job: CollectiveJob, seconds: float = 180.0) -> JobPhase:
    """The phase in which the job ends."""
    job.until(lambda: job.get().status.completion_time, seconds, "the job ends")
    return JobPhase(str(job.get().status.phase))


def test_members_that_exit_0_together_have_done_their_work(cluster: Cluster, tmp_path: Path) -> None:
    """Both members form a group and exit with 0. The job succeeds, no pod is replaced, and nothing is trained
    twice."""
    for rank in (0, 1):
        (tmp_path / f"end-{rank}").touch()
    job = submit(cluster, "together", tmp_path)
    assert finished(job) is JobPhase.SUCCEEDED
    assert [starts(tmp_path, rank) for rank in (0, 1)] == [[["2", SUM]]] * 2
    assert restarts(job) == {}


@pytest.mark.parametrize("first", [0, 1])
def test_members_that_exit_0_at_different_times(cluster: Cluster, tmp_path: Path, first: int) -> None:
    """The member that ends first is not replaced, the other is left alone until it ends, and the job
    succeeds."""
    (tmp_path / f"end-{first}").touch()
    job = submit(cluster, f"first-{first}", tmp_path)

    def ended() -> list[str]:
        phases = [(pod["status"] or {}).get("phase") for pod in job.pods("worker")]
        return [phase for phase in phases if phase == "Succeeded"]

    job.until(ended, 120, "one worker has ended")
    assert job.get().status.completion_time is None
    (tmp_path / f"end-{1 - first}").touch()
    assert finished(job) is JobPhase.SUCCEEDED
    assert [starts(tmp_path, rank) for rank in (0, 1)] == [[["2", SUM]]] * 2
    assert restarts(job) == {}


def test_a_killed_member_is_replaced_and_all_begin_again(cluster: Cluster, tmp_path: Path) -> None:
    """A group can't continue without one of its members: when the replacement has joined, all members restart
    their programs with the addresses of the new group."""
    job = submit(cluster, "killed", tmp_path)
    job.until(lambda: starts(tmp_path, 0) and starts(tmp_path, 1), 120, "the group has formed")
    job.kill(sorted(job.running("worker"))[1])
    job.until(lambda: len(starts(tmp_path, 0)) == len(starts(tmp_path, 1)) == 2, 120, "it has formed again")
    for rank in (0, 1):
        (tmp_path / f"end-{rank}").touch()
    assert finished(job) is JobPhase.SUCCEEDED
    assert [starts(tmp_path, rank) for rank in (0, 1)] == [[["2", SUM]] * 2] * 2
