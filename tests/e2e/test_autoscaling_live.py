"""Jobs that size themselves while TensorFlow trains in them: embedded cluster, controller, master and agents
are real.

What is made so: a worker's step costs some waiting (as for input), so that several workers gain on a machine
of two cores; and a parameter server that wants more than its CPU limit is stopped and continued as a kernel
would, since the embedded cluster leaves CPU alone. Uses and speeds are those that were measured. The masters'
rhythm is faster than by default.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerStage
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.scaled_jobs import ScaledJob, ScaledTraining, Size

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def _folder(path: Path, name: str) -> Path:
    folder = path / name
    folder.mkdir()
    return folder


def test_a_job_grows_until_it_stops_gaining(cluster: Cluster, tmp_path: Path) -> None:
    """From one fixed server and one worker, a job grows by its own plans to five workers, the maximum of its
    annotation, or fewer if the last ones gain nothing. Of the 0.3 s of a step, 0.1 s can be used by one
    worker at a time, so that a fourth one hardly helps. The job makes at least twice the steps of one
    whose plans are only shown."""
    loads = ("--wait", "0.2", "--shared", "0.1")
    roles = {"ps": Size(1, "200m", auto_scale=False), "worker": Size(1, "500m")}
    still = ScaledJob.submit(
        cluster, ScaledTraining(_folder(tmp_path, "still"), loads, roles).manifest("still")
    )
    still.until(lambda: still.planned().reasons, 300, "it says what it would do")
    before = still.speed(20)
    assert not still.plans()
    assert len(still.running("worker")) == 1
    still.run(DELETE, DeleteRequest(name="still"))

    training = ScaledTraining(_folder(tmp_path, "grower"), loads, roles, autoscale="1-5")
    grower = ScaledJob.submit(cluster, training.manifest("grower"))

    def at_rest() -> bool:
        about, plans = grower.planned(), grower.plans()
        done = all(plan.status.phase is ScalePlanPhase.SUCCEEDED for plan in plans)
        nothing = not about.reasons and "was carried out" not in " ".join(about.notes)
        return bool(plans) and done and about.stage == OptimizerStage.RUNNING and nothing

    grower.until(at_rest, 600, "it has nothing left to plan")
    workers, after = len(grower.running("worker")), grower.speed(20)
    print(f"still: 1 worker, {before:.1f} steps/s; grown: {workers} workers, {after:.1f} steps/s")
    told = grower.described()
    print(told)
    assert workers >= 3
    assert after >= 2 * before
    assert "because" in told
    assert "the busiest parameter server uses" in told
    grower.run(DELETE, DeleteRequest(name="grower"))


def test_a_hot_server_is_migrated(cluster: Cluster, tmp_path: Path) -> None:
    """The first of two servers needs more cores than its limit. It is migrated to a pod with more, the step
    does not go back, and the job is faster than before."""
    training = ScaledTraining(
        _folder(tmp_path, "hot"),
        ("--wait", "0.02", "--load", "0.5"),
        {"ps": Size(2, "100m"), "worker": Size(1, "500m", auto_scale=False)},
        autoscale="true",
    )
    job = ScaledJob.submit(cluster, training.manifest("hot"))
    job.wait_step(20)
    before = job.speed(15)

    def migration() -> ScalePlan | None:
        return next((plan for plan in job.plans() if plan.spec.migrate_pods), None)

    plan = job.until(migration, 400, "it plans a migration")
    made = job.await_plan(plan.metadata.name, ScalePlanPhase.SUCCEEDED, ScalePlanPhase.FAILED, seconds=300)

    assert made.status.phase is ScalePlanPhase.SUCCEEDED, made.status
    assert "hot-edljob-ps-0" in [pod.name for pod in made.spec.migrate_pods]
    assert made.status.checkpoint is not None
    assert made.status.resumed_step is not None
    assert made.status.resumed_step > made.status.checkpoint.step
    after = job.speed(15)
    told = job.described()
    print(f"hot: {before:.1f} steps/s; migrated: {after:.1f} steps/s")
    print(told)
    assert after > 1.2 * before
    assert "is hot" in told
    job.run(DELETE, DeleteRequest(name="hot"))


def test_a_worker_that_ran_out_of_memory_has_more(cluster: Cluster, tmp_path: Path) -> None:
    """A worker that exceeds its memory limit is killed by the cluster. Its replacement has at least twice the
    memory and trains."""
    training = ScaledTraining(
        _folder(tmp_path, "heavy"),
        ("--wait", "0.05", "--ballast", "1000"),
        {"ps": Size(1, "200m"), "worker": Size(1, "500m", "900Mi")},
    )
    job = ScaledJob.submit(cluster, training.manifest("heavy"))
    job.wait_step(10, seconds=400)
    (name,) = job.running("worker")
    (pod,) = [pod for pod in job.pods("worker") if pod["metadata"]["name"] == name]
    told = job.described()
    print(told)
    assert name != "heavy-edljob-worker-0"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] in ("1800Mi", "3600Mi")
    assert "ran out of memory" in told
    job.run(DELETE, DeleteRequest(name="heavy"))
