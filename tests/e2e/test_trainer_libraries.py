"""Collective jobs of libraries with a loop of their own on the embedded cluster: scaled by a pipeline stage,
and killed."""

import collections
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.clients.environments import python_environment
from tests.e2e.collective_jobs import (
    HUGGING_FACE,
    LIGHTNING,
    CollectiveJob,
    CollectiveTraining,
    losses,
    worlds,
)
from tests.e2e.records import RECORDS, trained

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

START_SECONDS = 300.0
"""To some steps of a job: its processes import PyTorch on a machine that may have two busy cores."""


@dataclass(frozen=True)
class Example:
    """A training program.

    Attributes:
        program: its file.
        records: of an epoch.
        epochs: enough for all that a test does.
    """

    program: Path
    records: int
    epochs: int = 40


EXAMPLES = {"hugging_face": Example(HUGGING_FACE, 900), "lightning": Example(LIGHTNING, RECORDS)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def training_of(example: Example, folder: Path, delay: float) -> CollectiveTraining:
    """The training, by an interpreter that has the libraries."""
    folder.mkdir()
    torch = str(python_environment("torch"))
    return CollectiveTraining(example.program, folder, example.epochs, delay, python=torch)


def curve(job: CollectiveJob) -> dict[int, float]:
    """The loss of each step of a job, once it has succeeded."""
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)
    return losses(job, [pod["metadata"]["name"] for pod in job.pods(names.WORKER_TYPE)])


@pytest.mark.parametrize("name", ["hugging_face", pytest.param("lightning", marks=pytest.mark.long)])
def test_workers_come_and_die_under_the_librarys_loop(name: str, cluster: Cluster, tmp_path: Path) -> None:
    """A job grows from 1 to 2 workers, the second one is killed and replaced, and the master is killed. Each
    record of each epoch is trained exactly once, each loss is within 1e-5 of that of an undisturbed run,
    and the first worker keeps its process."""
    example = EXAMPLES[name]
    submitted = name.replace("_", "-")
    alone = training_of(example, tmp_path / "alone", 0.0)
    undisturbed = CollectiveJob.submit(cluster, alone.manifest(f"{submitted}-alone"))
    folder = tmp_path / "elastic"
    training = training_of(example, folder, 0.5)
    job = CollectiveJob.submit(cluster, training.manifest(submitted))
    job.wait_step(5, START_SECONDS)
    job.scale(2, START_SECONDS)
    *_, newest = sorted(job.running(names.WORKER_TYPE))
    job.kill(newest)
    job.until(lambda: list(worlds(folder).values())[-1] == 1, START_SECONDS, "the survivor trains")
    job.until(lambda: list(worlds(folder).values())[-1] == 2, START_SECONDS, "the replacement is let in")
    job.kill(job.running(names.MASTER_TYPE)[0])
    made = max(worlds(folder))
    job.until(lambda: max(worlds(folder)) > made + 3, START_SECONDS, "training goes on without the master")
    training.hurry()
    found, expected = curve(job), curve(undisturbed)

    assert trained(folder) == collections.Counter(
        (epoch, record) for epoch in range(1, example.epochs + 1) for record in range(example.records)
    )
    files = folder.glob("records-worker-0-*")
    assert len({file.name.rpartition("-")[2] for file in files}) == 1, "one process"
    assert found.keys() == expected.keys()
    assert max(abs(found[step] - expected[step]) for step in found) < 1e-5
    checkpoint = job.get().status.checkpoint
    assert checkpoint is not None
    assert checkpoint.step == max(expected)
