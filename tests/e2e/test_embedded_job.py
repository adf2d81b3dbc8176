"""Elastic jobs as users run them: embedded cluster, controller, master, agents and TensorFlow, with real
kills."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS, MigratePsRequest
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND, ResumeRequest, SuspendRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.training import CheckpointStore
from tests import local_cluster
from tests.e2e.embedded import EmbeddedJob, manifest
from tests.e2e.records import all_records, consumed, evaluate, trained, version_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def test_master_killed_in_the_middle_of_a_migration(cluster: Cluster, tmp_path: Path) -> None:
    """A job is scaled to more workers and then from 2 to 3 servers, while its master is killed. The migration
    finishes, the step never falls below the checkpoint's, no record is lost, and the final model is good."""
    epochs = 60
    job = EmbeddedJob.submit(cluster, manifest("survivor", tmp_path, epochs, 0.05, {"ps": 2, "worker": 1}))
    job.wait_step(30)
    job.run(SCALE, ScaleRequest(job=job.name, replicas={"worker": ReplicaResourceSpec(replicas=2)}))
    assert len(job.running(names.WORKER_TYPE)) == 2

    handle = MIGRATE_PS.begin(
        cluster, MigratePsRequest(job=job.name, replicas=3), StageIdentity(owner="tests/e2e/migrate")
    )
    job.await_plan(handle.name, ScalePlanPhase.MIGRATING)
    (master,) = job.running(names.MASTER_TYPE)
    job.kill(master)
    plan = job.await_plan(handle.name, ScalePlanPhase.SUCCEEDED, ScalePlanPhase.FAILED)

    assert plan.status.phase is ScalePlanPhase.SUCCEEDED, plan.status
    assert plan.status.checkpoint is not None
    assert plan.status.resumed_step is not None
    assert plan.status.resumed_step > plan.status.checkpoint.step
    assert len(job.running(names.PS_TYPE)) == 3
    job.wait_phase(JobPhase.SUCCEEDED)
    assert job.get().status.master_restarts == 1
    assert set(trained(tmp_path)) == all_records(epochs)
    assert evaluate(tmp_path)["accuracy"] >= 0.93


@pytest.mark.long
def test_suspended_job_goes_on_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    """A suspension ends all pods. After resuming, training continues from the checkpoint that the chief
    saved, and no record is lost."""
    epochs = 25
    job = EmbeddedJob.submit(cluster, manifest("sleeper", tmp_path, epochs, 0.05, {"ps": 1, "worker": 1}))
    job.wait_step(100)
    job.run(SUSPEND, SuspendRequest(name=job.name))
    suspended = job.get().status

    assert not [
        pod for role in (names.PS_TYPE, names.WORKER_TYPE, names.MASTER_TYPE) for pod in job.running(role)
    ]
    assert suspended.checkpoint is not None
    assert suspended.checkpoint.step >= 100
    job.run(RESUME, ResumeRequest(name=job.name))
    job.wait_phase(JobPhase.SUCCEEDED)
    after = [step for name, _, step, _ in consumed(tmp_path) if "-v1-" not in name]
    assert min(after) == suspended.checkpoint.step + 1
    assert set(trained(tmp_path)) == all_records(epochs)


def test_job_that_is_suspended_evicted_and_deleted_loses_no_step(cluster: Cluster, tmp_path: Path) -> None:
    """A job with servers saves only on request, and its saves take longer than its agents' grace. It is
    suspended and resumed, then its server's pod is evicted, then it is deleted. Each cluster version begins
    with the step after the last one that any worker made before, the last checkpoint holds the last step, and
    no process is left."""
    wanted = manifest("leaver", tmp_path, 1000, 0.05, {"ps": 1, "worker": 2})
    (main,) = wanted["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
    before_program = main["command"].index("--")
    main["command"][before_program:before_program] = ["--checkpoint-grace", "2"]
    main["command"] += ["--slow-save", "6"]
    job = EmbeddedJob.submit(cluster, wanted)
    job.wait_step(30)
    job.run(SUSPEND, SuspendRequest(name=job.name))
    checkpoint = job.get().status.checkpoint
    assert checkpoint is not None
    assert checkpoint.step == _last_step(tmp_path)

    job.run(RESUME, ResumeRequest(name=job.name))
    job.wait_step(checkpoint.step + 20)
    (server,) = job.running(names.PS_TYPE)
    client.delete(cluster, resources.PODS, server)
    job.until(lambda: len(_steps(tmp_path)) > 2, 240, "the version after the eviction trains")
    job.run(DELETE, DeleteRequest(name=job.name))
    for before, after in itertools.pairwise(_steps(tmp_path).values()):
        assert min(after) == max(before) + 1
    newest = CheckpointStore(tmp_path / "checkpoints").newest()
    assert newest is not None
    assert newest.step == _last_step(tmp_path)
    assert not [
        pod for role in (names.PS_TYPE, names.WORKER_TYPE, names.MASTER_TYPE) for pod in job.pods(role)
    ]


def _steps(folder: Path) -> dict[int, list[int]]:
    """The steps of each cluster version, oldest first."""
    by_version: dict[int, list[int]] = {}
    for name, _, step, _ in consumed(folder):
        by_version.setdefault(version_of(name), []).append(step)
    return dict(sorted(by_version.items()))


def _last_step(folder: Path) -> int:
    return max(step for _, _, step, _ in consumed(folder))
