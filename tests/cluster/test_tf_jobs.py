"""TFJobs that train with TensorFlow in real pods."""

import time
from pathlib import Path

import pytest

from edl_workflows.core.jobs.kubeflow.model import KubeflowPhase
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import PODS
from tests.cluster.training import Place, container
from tests.e2e.tf_jobs import MirroredTraining, TfTraining

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.long,
]


def folder(here: Place, name: str) -> Path:
    """A job's own."""
    made = here.folder / name
    made.mkdir(mode=0o777)
    return made


def test_parameter_servers_and_workers(here: Place) -> None:
    """A job of 1 PS and 2 workers gets a second PS. All pods start again with the new cluster from the
    checkpoint, and succeed."""
    job = TfTraining(here.cluster, "tf-servers", folder(here, "tf-servers"))
    program = ("tfjob_digits.py", "--steps", "1500", "--step-delay", "0.02", "--save-seconds", "2")
    begun = time.monotonic()
    job.submit(container(here.bed), program, PS=1, Worker=2)
    job.until(lambda: job.step() >= 100, 240, "it trains")
    print(f"submit to a checkpoint of step 100 or later: {time.monotonic() - begun:.1f} s")

    before = job.step()
    client.patch(here.cluster, TF_JOBS, job.name, {"spec": {"tfReplicaSpecs": {"PS": {"replicas": 2}}}})
    job.until(lambda: job.get().status.phase is KubeflowPhase.RESTARTING, 60, "the cluster changes")
    job.until(lambda: job.get().status.replica_statuses["PS"].active == 2, 180, "two servers run")
    job.await_success()

    assert job.step() >= 1500
    assert job.first_step("tf-servers-worker-0") >= before, "the new cluster began with the checkpoint"


def test_mirrored_workers(here: Place) -> None:
    """Two workers average their gradients at every step. When the pod of one is deleted, both start again at
    the newest checkpoint and end with the same weights."""
    job = MirroredTraining(here.cluster, "tf-mirrored", folder(here, "tf-mirrored"))
    pods = job.start(container(here.bed))

    before, lost = job.step(), client.get(here.cluster, PODS, pods[1])["metadata"]["uid"]
    client.delete(here.cluster, PODS, pods[1], options=client.DeletionOptions(uid=lost))
    job.until(lambda: job.restarted(pods[0]) == 138, 90, "the other worker begins anew, too")
    job.ends_alike(pods, before)
    assert client.get(here.cluster, PODS, pods[1])["metadata"]["uid"] != lost
