"""A submitted PyTorchJob, and what tests of any cluster do to it."""

from pathlib import Path
from typing import Any

from edl_workflows.core.exceptions import ConflictError, InvalidError, NotFoundError
from edl_workflows.core.jobs.pytorch_job.kind import PYTORCH_JOB
from edl_workflows.core.jobs.pytorch_job.model import PyTorchJob
from edl_workflows.runtime.kube import client, logs, resources
from tests.e2e.kubeflow_jobs import KubeflowTraining
from tests.e2e.submitted import Container

SUM = Path(__file__).parents[2] / "dags" / "training" / "pytorchjob_sum.py"


class TorchTraining(KubeflowTraining[PyTorchJob]):
    """A submitted PyTorchJob."""

    kind = PYTORCH_JOB
    specs_field = "pytorchReplicaSpecs"
    container = "pytorch"
    grace = 2

    def submit(self, container: Container, *arguments: str, spec: dict[str, Any], **replicas: int) -> None:
        """Submit it: every replica runs Python with these arguments; `spec` adds fields to the job's."""
        self.submit_program(container, arguments, replicas, **spec)

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
