"""TFJobs as users run them: embedded cluster, controller and TensorFlow, with real kills."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.kubeflow.model import KubeflowPhase
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.any_job import kill_processes
from tests.e2e.submitted import Container
from tests.e2e.tf_jobs import PROGRAMS, MirroredTraining, TfTraining

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

LOCAL = Container("local", sys.executable)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    with local_cluster.cluster(
        tmp_path_factory.mktemp("cluster"), local_cluster.Settings(controller=True, grace=5.0)
    ) as running:
        yield running.client()


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


@pytest.mark.smoke
def test_parameter_servers_and_workers(cluster: Cluster, tmp_path: Path) -> None:
    """1 PS and 2 workers train on the digits. A killed worker is replaced, training continues from the
    checkpoint with another number of PS, and the job succeeds with a good model."""
    job = TfTraining(cluster, "digits-tf", tmp_path)
    program = ("tfjob_digits.py", "--steps", "1500", "--step-delay", "0.02", "--save-seconds", "2")
    job.submit(LOCAL, program, PS=1, Worker=2)
    job.until(lambda: job.step() >= 100, 120, "it trains")

    kill_processes(HOSTNAME="digits-tf-worker-1")
    job.until(lambda: job.restarted("digits-tf-worker-1") == 137, 30, "the worker is replaced")

    before = job.step()
    client.patch(cluster, TF_JOBS, job.name, {"spec": {"tfReplicaSpecs": {"PS": {"replicas": 2}}}})
    job.until(lambda: job.get().status.phase is KubeflowPhase.RESTARTING, 30, "the cluster changes")
    job.until(lambda: job.get().status.replica_statuses["PS"].active == 2, 120, "two servers run")
    job.await_success()

    assert job.step() >= 1500
    assert job.first_step("digits-tf-worker-0") >= before, "the new cluster began with the checkpoint"
    assert accuracy(tmp_path) >= 0.93


@pytest.mark.long
def test_mirrored_workers(cluster: Cluster, tmp_path: Path) -> None:
    """Two workers average their gradients at every step. When one is killed, both start again at the newest
    checkpoint and end with the same weights."""
    job = MirroredTraining(cluster, "digits-mirrored", tmp_path)
    pods = job.start(LOCAL)

    before = job.step()
    kill_processes(HOSTNAME=pods[1])
    job.until(lambda: [job.restarted(pod) for pod in pods] == [138, 137], 60, "both are replaced")
    job.ends_alike(pods, before)
