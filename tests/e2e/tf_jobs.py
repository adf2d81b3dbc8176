"""A submitted TFJob that trains, and what tests of any cluster do to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edl_workflows.jobs.kubeflow.model import KubeflowPhase, ReplicaRestarts
from edl_workflows.jobs.tf_job.model import TFJob
from edl_workflows.kube import client, logs
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import ownership
from edl_workflows.stages.identity import StageIdentity
from edl_workflows.stages.submit import SUBMIT, SubmitRequest
from tests.e2e.submitted import Container

PROGRAMS = Path(__file__).parents[2] / "dags" / "training"
TF_JOBS = ownership.resource_of("TFJob")
MIRRORED_STEPS = 400
MIRRORED = (
    "tfjob_mirrored.py",
    *("--steps", str(MIRRORED_STEPS)),
    *("--step-delay", "0.1"),
    *("--save-steps", "20"),
)


@dataclass
class TfTraining:
    """A submitted TFJob.

    Attributes:
        cluster: where.
        name: the job's.
        folder: for checkpoints, at the same path in all pods.
    """

    cluster: Cluster
    name: str
    folder: Path

    def submit(self, container: Container, program: tuple[str, ...], **replicas: int) -> None:
        """Submit it: every replica runs the program.

        Args:
            container: what every container has.
            program: a file of the examples and its arguments.
            replicas: by replica type.
        """
        file, *arguments = program
        main = container.runs(str(PROGRAMS / file), "--checkpoint-dir", str(self.folder), *arguments)
        main |= {"name": "tensorflow", "volumeMounts": [{"name": "work", "mountPath": str(self.folder)}]}
        volume = {"name": "work", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        pod = {"containers": [main], "volumes": [volume], "terminationGracePeriodSeconds": 20}
        role = {"restartPolicy": "ExitCode", "template": {"spec": pod}}
        manifest = {
            "apiVersion": TF_JOBS.api_version,
            "kind": TF_JOBS.kind,
            "metadata": {"name": self.name},
            "spec": {
                "successPolicy": "AllWorkers",
                "tfReplicaSpecs": {key: role | {"replicas": count} for key, count in replicas.items()},
            },
        }
        owner = StageIdentity(owner=f"tests/e2e/{self.name}")
        SUBMIT.begin(self.cluster, SubmitRequest(manifest=manifest), owner)

    def get(self) -> TFJob:
        """The job now."""
        return TFJob.parse(client.get(self.cluster, TF_JOBS, self.name))

    def until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something; a job that fails meanwhile fails the test."""
        deadline = time.monotonic() + seconds
        while not true():
            status = self.get().status
            assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}; {status}"
            assert status.phase is not KubeflowPhase.FAILED, status.message
            time.sleep(0.2)

    def await_success(self, seconds: float = 240) -> None:
        """Wait for its end."""
        self.until(lambda: self.get().status.phase is KubeflowPhase.SUCCEEDED, seconds, "it ends")

    def step(self) -> int:
        """Of the newest checkpoint."""
        found = [int(f.stem.rpartition("-")[2]) for f in self.folder.glob("model.ckpt-*.index")]
        return max(found, default=-1)

    def restarted(self, pod: str) -> int | None:
        """Exit code with which a pod ended that was replaced."""
        return self.get().status.restarts.get(pod, ReplicaRestarts()).exit_code

    def first_step(self, pod: str) -> int:
        """The first one that a pod's process tells."""
        told = (line for line in logs.read(self.cluster, pod).splitlines() if line.startswith("step "))
        return int(next(told).split()[1])

    def said(self, pod: str, word: str) -> list[str]:
        """The words of the last line of a pod's log that begins with a word."""
        lines = logs.read(self.cluster, pod).splitlines()
        return [line for line in lines if line.startswith(f"{word} ")][-1].split()


@dataclass
class MirroredTraining(TfTraining):
    """2 workers that average their gradients at every step."""

    def start(self, container: Container) -> list[str]:
        """Submit it, and wait until it trains; its pods' names."""
        self.submit(container, MIRRORED, Worker=2)
        self.until(lambda: self.step() >= 60, 300, "it trains")
        return [f"{self.name}-worker-{index}" for index in (0, 1)]

    def ends_alike(self, pods: list[str], least: int) -> None:
        """The job succeeds; its workers began last at the same checkpoint, of step `least` or later, and end
        with the same weights, which are good."""
        self.await_success()
        restored, trained = ([self.said(pod, word) for pod in pods] for word in ("restored", "trained"))
        assert self.step() == MIRRORED_STEPS
        assert restored[0] == restored[1]
        assert int(restored[0][2]) >= least, "the new processes began with the checkpoint, not at 0"
        assert trained[0] == trained[1]
        assert float(trained[0][-1]) >= 0.93
