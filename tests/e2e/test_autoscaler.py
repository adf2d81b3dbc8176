"""The autoscaler with real processes: jobs on an embedded cluster that is too small for all that they may
have."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.training_job.kind import TRAINING_JOB
from edl_workflows.core.jobs.training_job.model import TrainingJobPhase
from edl_workflows.core.kubernetes.api import TRAINING_JOBS
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.runtime.kube import client, events
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS
from edl_workflows.services.controller.autoscaler import AutoscalerOptions
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import RunOptions
from tests import local_cluster
from tests.controller_thread import run_in_thread
from tests.e2e.submitted import Container
from tests.e2e.training_jobs import PaddleTraining, manifest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of six cores, with a controller that autoscales."""
    settings = local_cluster.Settings(cpu="6", grace=5.0)
    with local_cluster.cluster(tmp_path_factory.mktemp("cluster"), settings) as found:
        connection = found.client()
        scaler = AutoscalerOptions(period=2, cool_down=4, max_load={"cpu": 1.0, "memory": 1.0})
        manager = ManagerOptions(
            NamespaceSelection.of(connection.namespace), kinds=(TRAINING_JOB,), autoscaler=scaler
        )
        controller = run_in_thread(connection, RunOptions(manager=manager))
        assert controller.wait_ready(30)
        yield connection
        controller.stop()


def submit(cluster: Cluster, folder: Path, name: str, least: int) -> PaddleTraining:
    """A fault-tolerant job of up to four trainers that take a core each and run until they are told to
    end."""
    wanted: dict[str, Any] = manifest(name, folder, Container("local", sys.executable), 0, 1)
    for role in ("master", "pserver", "trainer"):
        wanted["spec"][role]["entrypoint"] = "exec sleep 1000"
    wanted["spec"]["trainer"] |= {
        "min-instance": least,
        "max-instance": 4,
        "parallelism": least,
        "resources": {"requests": {"cpu": "1", "memory": "16Mi"}},
    }
    return PaddleTraining.submit_manifest(cluster, wanted, folder)


def runs(job: PaddleTraining, trainers: int) -> None:
    """Wait until so many trainers run, and no other is asked for."""

    def there() -> bool:
        found = job.get()
        counts = found.status.replica_statuses.get("trainer")
        asked = found.spec.trainer.desired
        return asked == trainers and counts is not None and counts.active == trainers

    job.until(there, 60, f"{trainers} trainers run")


def test_two_jobs_share_a_full_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """A job grows by itself to its maximum. It shrinks for another job whose trainers wait for room, without
    restarting the trainers it keeps, and grows again when the other job is gone. Each change has a reason."""
    first = submit(cluster, tmp_path, "first", 1)
    runs(first, 4)
    oldest = client.get(cluster, PODS, "first-trainer-0")["metadata"]["uid"]

    second = submit(cluster, tmp_path, "second", 2)
    runs(second, 2)
    runs(first, 3)
    assert first.get().status.failures == []
    second.run(DELETE, DeleteRequest(name="second", kind="TrainingJob"))
    runs(first, 4)

    job = client.get(cluster, TRAINING_JOBS, "first")
    messages = [
        event["message"] for event in events.of_object(cluster, job) if event["reason"] == "Autoscaled"
    ]
    assert client.get(cluster, PODS, "first-trainer-0")["metadata"]["uid"] == oldest
    assert first.get().status.phase is TrainingJobPhase.RUNNING
    assert any("there is room for" in message for message in messages)
    assert any("waits" in message or "give" in message for message in messages), messages
