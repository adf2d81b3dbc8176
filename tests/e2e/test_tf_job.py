"""TFJobs as users run them: embedded cluster, controller and TensorFlow, with real kills."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl_workflows.jobs.tf_job.model import Phase, Restart, TFJob
from edl_workflows.kube import client, logs
from edl_workflows.kube.connect import Cluster
from edl_workflows.local import testing
from edl_workflows.stages import ownership
from edl_workflows.stages.identity import Identity
from edl_workflows.stages.submit import SUBMIT, SubmitRequest

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parents[2] / "dags" / "training"
TF_JOBS = ownership.resource_of("TFJob")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    with testing.cluster(
        tmp_path_factory.mktemp("cluster"), testing.Settings(controller=True, grace=5.0)
    ) as running:
        yield running.client()


@dataclass
class Job:
    """A submitted TFJob."""

    cluster: Cluster
    name: str
    folder: Path

    @classmethod
    def submit(cls, cluster: Cluster, name: str, folder: Path, program: list[str], **replicas: int) -> "Job":
        container = {
            "name": "tensorflow",
            "image": "local",
            "command": [sys.executable, *program, "--checkpoint-dir", str(folder)],
            "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        }
        template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 20}}
        roles = {
            k: {"replicas": n, "restartPolicy": "ExitCode", "template": template} for k, n in replicas.items()
        }
        manifest = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": name},
            "spec": {"tfReplicaSpecs": roles},
        }
        SUBMIT.begin(cluster, SubmitRequest(manifest=manifest), Identity(owner=f"tests/e2e/{name}"))
        return cls(cluster, name, folder)

    def get(self) -> TFJob:
        return TFJob.parse(client.get(self.cluster, TF_JOBS, self.name))

    def until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}; {self.get().status}"
            status = self.get().status
            assert status.phase is not Phase.FAILED, status.message
            time.sleep(0.2)

    def step(self) -> int:
        """Of the newest checkpoint."""
        found = [int(f.stem.rpartition("-")[2]) for f in self.folder.glob("model.ckpt-*.index")]
        return max(found, default=-1)

    def restarted(self, pod: str) -> int | None:
        """Exit code with which a pod ended that was replaced."""
        return self.get().status.restarts.get(pod, Restart()).exit_code

    def kill(self, pod: str) -> None:
        found = [
            p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("HOSTNAME") == pod
        ]
        assert found, f"no process of {pod}"
        for process in found:
            if process.is_running():
                os.kill(process.pid, signal.SIGKILL)


def accuracy(folder: Path) -> float:
    """Of the newest checkpoint, on the held-out data."""
    import tensorflow as tf

    sys.path.insert(0, str(PROGRAMS))
    from digits import load, predict  # type: ignore[import-not-found]

    reader: Any = tf.train.load_checkpoint(str(folder))
    wanted = [n for n in reader.get_variable_to_shape_map() if n.endswith(("/weights", "/biases"))]
    _, held_out = load()
    return float(
        (predict({n: reader.get_tensor(n) for n in wanted}, held_out.images) == held_out.labels).mean()
    )


def test_parameter_servers_and_workers(cluster: Cluster, tmp_path: Path) -> None:
    """1 PS and 2 workers learn the digits; a killed worker is replaced, other parameter servers go on from the checkpoint,
    and the job succeeds with a good model."""
    program = [
        str(PROGRAMS / "tfjob_digits.py"),
        "--steps",
        "1500",
        "--step-delay",
        "0.02",
        "--save-seconds",
        "2",
    ]
    job = Job.submit(cluster, "digits-tf", tmp_path, program, PS=1, Worker=2)
    job.until(lambda: job.step() >= 100, 120, "it trains")

    job.kill("digits-tf-worker-1")
    job.until(lambda: job.restarted("digits-tf-worker-1") == 137, 30, "the worker is replaced")

    before = job.step()
    client.patch(cluster, TF_JOBS, job.name, {"spec": {"tfReplicaSpecs": {"PS": {"replicas": 2}}}})
    job.until(lambda: job.get().status.phase is Phase.RESTARTING, 30, "the cluster changes")
    job.until(lambda: job.get().status.replica_statuses["PS"].active == 2, 120, "two servers run")
    job.until(lambda: job.get().status.phase is Phase.SUCCEEDED, 240, "it ends")

    assert job.step() >= 1500
    log = logs.read(cluster, "digits-tf-worker-0")
    first = int(next(line for line in log.splitlines() if line.startswith("step ")).split()[1])
    assert first >= before, "the new cluster began with the checkpoint, not at 0"
    assert accuracy(tmp_path) >= 0.93
