"""What the time of a real job is spent on: a save, a killed worker, a killed master, a suspension."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.model import GoodputStatus
from edl_workflows.core.jobs.elastic_job.time_spent import time_by_cause
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.checkpoint import CHECKPOINT, CheckpointRequest
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND, ResumeRequest, SuspendRequest
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.embedded import EmbeddedJob

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import sys, time
from pathlib import Path
from edl_workflows.training import CheckpointStore, connect

WORK = 1.5
folder = Path(sys.argv[1])
store = CheckpointStore(folder / "checkpoints")
with connect() as job:
    time.sleep(WORK)  # imports, and builds the model
    job.wait_until_active()
    found = job.start_from(store)
    step = 0 if found is None else found.step
    time.sleep(0 if found is None else WORK)  # restores

    def save():
        time.sleep(WORK)
        return store.publish(step, lambda into: (into / "model").write_text(str(step)))

    job.save_with(save)
    for batch in job.batches("numbers", size=100_000, batch_size=10, shard_size=20):
        step += 1
        job.report_step(step)
        if not (folder / "hurry").exists():
            time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An embedded cluster with its controller."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=10.0)) as running:
        yield running.client()


def manifest(folder: Path) -> dict[str, Any]:
    """A job of one worker that saves when it is asked to."""
    (folder / "program.py").write_text(PROGRAM)
    agent = ["-m", "edl_workflows", "agent", "run", "--", sys.executable, str(folder / "program.py")]
    container = {"name": "main", "image": "local", "command": [sys.executable, *agent, str(folder)]}
    role = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": "spender"},
        "spec": {"optimizeMode": "manual", "replicaSpecs": {"worker": role}},
    }


def spent_of(job: EmbeddedJob) -> GoodputStatus:
    """The account of a job. Its parts are the time since the job was created, to a second."""
    found = job.get()
    created, goodput = found.metadata.creation_timestamp, found.status.goodput
    assert created is not None
    assert goodput is not None
    assert goodput.time is not None
    age = (goodput.time - created).total_seconds()
    assert sum(goodput.seconds.values()) == pytest.approx(age, abs=1.0)
    return goodput


def test_all_time_of_a_job_has_its_cause(cluster: Cluster, tmp_path: Path) -> None:
    """Whatever happens to the job and its master, the parts of its time add up to its age, and each event has
    its part."""
    began = datetime.now(UTC)
    job = EmbeddedJob.submit(cluster, manifest(tmp_path))
    job.wait_step(20)
    assert spent_of(job).seconds.keys() >= {"queued", "import"}

    job.run(CHECKPOINT, CheckpointRequest(job=job.name))
    saved = job.until(lambda: job.get().status.checkpoint, 60, "the status names the checkpoint")
    job.wait_step(saved.step + 60)
    job.kill(job.running(names.WORKER_TYPE)[0])
    known = {"training", "save", "redone", "restore"}
    job.until(lambda: spent_of(job).seconds.keys() >= known, 120, "training goes on after the kill")

    (master,) = job.running(names.MASTER_TYPE)
    job.kill(master)
    job.until(lambda: master not in job.running(names.MASTER_TYPE), 60, "the master is gone")
    progress = job.get().status.progress
    assert progress is not None
    job.wait_step(progress.step + 40)
    spent_of(job)

    job.run(SUSPEND, SuspendRequest(name=job.name))
    suspended = spent_of(job)
    assert suspended.cause == "suspended"
    later = time_by_cause(suspended, datetime.now(UTC))
    assert sum(later.values()) <= (datetime.now(UTC) - began).total_seconds() + 2.0
    job.run(RESUME, ResumeRequest(name=job.name))
    (tmp_path / "hurry").touch()
    job.wait_phase(JobPhase.SUCCEEDED)

    ended = spent_of(job)
    assert ended.cause == ""
    causes = {"training", "queued", "import", "restore", "save", "redone", "suspended"}
    assert ended.seconds.keys() >= causes, ended
    assert sum(ended.seconds.values()) <= (datetime.now(UTC) - began).total_seconds() + 2.0
    assert ended.elapsed_seconds == pytest.approx(
        sum(ended.seconds.values()) - ended.seconds["suspended"], abs=2.0
    )
