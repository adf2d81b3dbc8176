"""A submitted job of one of Kubeflow's kinds, and what tests of any cluster do to it."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from edl_workflows.core.jobs.kubeflow.model import KubeflowJob, KubeflowPhase, ReplicaRestarts
from tests.e2e.any_job import AnyJob
from tests.e2e.submitted import Container

KubeflowT = TypeVar("KubeflowT", bound=KubeflowJob)


@dataclass
class KubeflowTraining(AnyJob[KubeflowT]):
    """A submitted job whose replicas all run the same program."""

    specs_field: ClassVar[str]
    container: ClassVar[str]
    grace: ClassVar[int]

    def submit_program(
        self, container: Container, arguments: tuple[str, ...], replicas: dict[str, int], **spec: Any
    ) -> None:
        """Submit it: every replica runs Python with these arguments.

        Args:
            container: what every container has.
            arguments: of Python.
            replicas: by replica type.
            spec: further fields of the job's spec.
        """
        main = container.runs(*arguments) | {"name": self.container}
        main["volumeMounts"] = [{"name": "work", "mountPath": str(self.folder)}]
        volume = {"name": "work", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        pod = {"containers": [main], "volumes": [volume], "terminationGracePeriodSeconds": self.grace}
        role = {"restartPolicy": "ExitCode", "template": {"spec": pod}}
        specs = {key: role | {"replicas": count} for key, count in replicas.items()}
        api = self.kind.source.api
        manifest = {
            "apiVersion": api.api_version,
            "kind": api.kind,
            "metadata": {"name": self.name},
            "spec": {self.specs_field: specs, **spec},
        }
        self.submit_manifest(self.cluster, manifest, self.folder)

    def await_success(self, seconds: float = 240) -> None:
        """Wait for its end."""
        self.await_phase(KubeflowPhase.SUCCEEDED, seconds)

    def restarted(self, pod: str) -> int | None:
        """Exit code with which a pod ended that was replaced."""
        return self.get().status.restarts.get(pod, ReplicaRestarts()).exit_code
