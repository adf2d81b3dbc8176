"""DIJobs as users run them: embedded cluster, controller, and an agent that really learns, with real
kills."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.di_job.model import DIJobPhase
from edl_workflows.core.kubernetes.api import DI_JOBS
from edl_workflows.local.capacity import NODE_NAME
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND, ResumeRequest, SuspendRequest
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.di_jobs import SLOW, DITraining, collectors_come_and_die, manifest
from tests.e2e.submitted import Container

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

LOCAL = Container("local", sys.executable)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    with local_cluster.cluster(
        tmp_path_factory.mktemp("cluster"), local_cluster.Settings(controller=True, grace=5.0)
    ) as running:
        yield running.client()


@pytest.mark.smoke
def test_an_agent_learns_while_collectors_come_and_die(cluster: Cluster, tmp_path: Path) -> None:
    """Learner, collectors and evaluator reach the best return, while collectors are added, killed and
    removed."""
    collectors_come_and_die(
        DITraining.submit_manifest(cluster, manifest("cliff", tmp_path, LOCAL, *SLOW), tmp_path)
    )


@pytest.mark.long
def test_a_preemptible_job_follows_its_allocation(cluster: Cluster, tmp_path: Path) -> None:
    """The job trains on its allocated nodes. With more replicas, all its pods start again as the next
    generation, and the learner continues from its checkpoint. Suspended, it has no pods; resumed, it
    succeeds."""
    job = DITraining.submit_manifest(cluster, preemptible("moves", tmp_path, collectors=1), tmp_path)
    job.await_phase(DIJobPhase.RUNNING)
    assert job.get().status.allocation == job.nodes() == [NODE_NAME] * 3
    job.learns_from(0)
    before = sum(job.progress()["walks"].values())

    spec = preemptible("moves", tmp_path, collectors=2)["spec"]
    client.patch(cluster, DI_JOBS, job.name, {"spec": {"tasks": spec["tasks"]}})
    job.until(lambda: job.get().status.generation == 1, 60, "a new generation")
    job.await_phase(DIJobPhase.RUNNING)
    job.learns_from(1)
    assert sum(job.progress()["walks"].values()) >= before, "the learner went on from its checkpoint"

    job.run(SUSPEND, SuspendRequest(name=job.name, kind=DI_JOBS.kind))
    assert job.pods() == []
    job.run(RESUME, ResumeRequest(name=job.name, kind=DI_JOBS.kind))
    job.await_phase(DIJobPhase.SUCCEEDED, 240)
    status = job.get().status
    assert status.restarts == 0
    assert status.generation >= 2


def preemptible(name: str, folder: Path, collectors: int) -> dict[str, Any]:
    """A job that is to have exactly so many collectors."""
    made = manifest(name, folder, LOCAL, *SLOW, preemptible=True)
    made["spec"]["tasks"][1] |= dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), collectors)
    return made
