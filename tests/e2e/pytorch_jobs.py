"""A submitted PyTorchJob, and what tests of any cluster do to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_workflows.exceptions import ConflictError, InvalidError, NotFoundError
from edl_workflows.jobs.kubeflow.model import KubeflowPhase, ReplicaRestarts
from edl_workflows.jobs.pytorch_job.model import PYTORCH_JOBS, PyTorchJob
from edl_workflows.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.kube import client, logs, resources
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import driver
from edl_workflows.stages.identity import StageIdentity
from edl_workflows.stages.scale import SCALE, ScaleRequest
from edl_workflows.stages.submit import SUBMIT, SubmitRequest
from tests.e2e.submitted import Container

SUM = Path(__file__).parents[2] / "dags" / "training" / "pytorchjob_sum.py"


@dataclass
class TorchTraining:
    """A submitted PyTorchJob.

    Attributes:
        cluster: where.
        name: the job's.
        folder: at the same path in all pods.
    """

    cluster: Cluster
    name: str
    folder: Path

    def submit(self, container: Container, *arguments: str, spec: dict[str, Any], **replicas: int) -> None:
        """Submit it: every replica runs Python with these arguments.

        Args:
            container: what every container has.
            arguments: of Python.
            spec: further fields of the job's spec.
            replicas: by replica type.
        """
        main = container.runs(*arguments) | {"name": "pytorch"}
        main["volumeMounts"] = [{"name": "work", "mountPath": str(self.folder)}]
        volume = {"name": "work", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        pod = {"containers": [main], "volumes": [volume], "terminationGracePeriodSeconds": 2}
        role = {"restartPolicy": "ExitCode", "template": {"spec": pod}}
        manifest = {
            "apiVersion": PYTORCH_JOBS.api_version,
            "kind": PYTORCH_JOBS.kind,
            "metadata": {"name": self.name},
            "spec": {
                "pytorchReplicaSpecs": {key: role | {"replicas": count} for key, count in replicas.items()},
                **spec,
            },
        }
        SUBMIT.begin(self.cluster, SubmitRequest(manifest=manifest), self._identity("submit"))

    def _identity(self, stage: str) -> StageIdentity:
        return StageIdentity(owner=f"tests/e2e/{self.name}/{stage}/{time.time_ns()}")

    def scale(self, workers: int, seconds: float = 120) -> None:
        """Run the stage ``scale`` until the job has so many workers."""
        wanted = {"worker": ReplicaResourceSpec(replicas=workers)}
        request = ScaleRequest(job=self.name, kind=PYTORCH_JOBS.kind, replicas=wanted)
        driver.run_stage(self.cluster, SCALE, request, self._identity("scale"), time.time() + seconds)

    def get(self) -> PyTorchJob:
        """The job now."""
        return PyTorchJob.parse(client.get(self.cluster, PYTORCH_JOBS, self.name))

    def until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something; a job that fails meanwhile fails the test."""
        deadline = time.monotonic() + seconds
        while not true():
            status = self.get().status
            assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}; {status}"
            assert status.phase is not KubeflowPhase.FAILED, status.message
            time.sleep(0.1)

    def await_success(self, seconds: float = 120) -> None:
        """Wait for its end."""
        self.until(lambda: self.get().status.phase is KubeflowPhase.SUCCEEDED, seconds, "it ends")

    def restarted(self, pod: str) -> int | None:
        """Exit code with which a pod ended that was replaced."""
        return self.get().status.restarts.get(pod, ReplicaRestarts()).exit_code

    def uids(self) -> dict[str, str]:
        """The job's pods by name."""
        selector = f"training.kubeflow.org/job-name={self.name}"
        scope = resources.Scope(resources.PODS, self.cluster.namespace, label_selector=selector)
        found = client.list_objects(self.cluster, scope).items
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    def steps(self) -> list[list[int]]:
        """What the master's present process printed: step, number of replicas, sum of their ranks. Nothing
        while the master is being replaced.
        """
        try:
            lines = logs.read(self.cluster, f"{self.name}-master-0").splitlines()
        except (NotFoundError, InvalidError, ConflictError):
            return []
        return [[int(word) for word in line.split()[1::2]] for line in lines if line.startswith("step ")]
