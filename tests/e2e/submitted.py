"""A submitted ElasticJob that trains and records its data, and what tests of any cluster do to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.description import R, StageSpec
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.stages.wait import WAIT, WaitRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.runtime.kube import client, logs, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.e2e.any_job import kill_processes

PROGRAM = Path(__file__).parent / "recorded_digits.py"
T = TypeVar("T")


@dataclass(frozen=True)
class Container:
    """What every container of a job has.

    Attributes:
        image: its image.
        python: path of Python in it, with this package.
        more: further fields, such as ``imagePullPolicy``.
    """

    image: str
    python: str
    more: dict[str, Any] = field(default_factory=dict)

    def runs(self, *arguments: str) -> dict[str, Any]:
        """The container, running Python with these arguments."""
        resources = {"requests": {"cpu": "50m", "memory": "256Mi"}}
        command = [self.python, *arguments]
        return {"name": "main", "image": self.image, "command": command, "resources": resources, **self.more}


@dataclass(frozen=True)
class Training:
    """What a job trains.

    Attributes:
        folder: for checkpoints and records, at the same path in all pods.
        epochs: how often all data is seen.
        delay: seconds of rest after each step, until `hurry`.
        replicas: nodes by role.
    """

    folder: Path
    epochs: int
    delay: float
    replicas: dict[str, int]

    def hurry(self) -> None:
        """No more rest after a step: the job comes to its end."""
        (self.folder / "hurry").touch()

    def manifest(self, name: str, container: Container) -> dict[str, Any]:
        """The job that trains the digits and records what it trains on."""
        agent = [
            "-m",
            "edl_workflows",
            "agent",
            "run",
            "--",
            container.python,
            str(PROGRAM),
            str(self.folder),
        ]
        main = container.runs(*agent, "--epochs", str(self.epochs), "--step-delay", str(self.delay))
        main["volumeMounts"] = [{"name": "work", "mountPath": str(self.folder)}]
        volume = {"name": "work", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        template = {"spec": {"containers": [main], "volumes": [volume]}}
        return {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticJob",
            "metadata": {"name": name},
            "spec": {
                "optimizeMode": "manual",
                "replicaSpecs": {
                    role: {"replicas": count, "template": template} for role, count in self.replicas.items()
                },
            },
        }


@dataclass
class SubmittedJob:
    """A submitted job, and what tests do to it.

    Attributes:
        cluster: where.
        name: the job's.
    """

    cluster: Cluster
    name: str

    @classmethod
    def submit(cls, cluster: Cluster, wanted: dict[str, Any]) -> Self:
        """Submit a manifest by the stage."""
        handle = SUBMIT.begin(cluster, SubmitRequest(manifest=wanted), StageIdentity(owner="tests/e2e"))
        return cls(cluster, handle.name)

    def run(self, stage: StageSpec[R], request: R, seconds: float = 300) -> Outputs:
        """Run a stage to its goal."""
        identity = StageIdentity(owner=f"tests/e2e/{stage.name}/{time.time_ns()}")
        return driver.run_stage(self.cluster, stage, request, identity, time.time() + seconds)

    def wait_step(self, step: int, seconds: float = 240) -> Outputs:
        """Wait until training has passed a step."""
        return self.run(WAIT, WaitRequest(name=self.name, step=step), seconds)

    def wait_phase(self, *phases: JobPhase, seconds: float = 300) -> Outputs:
        """Wait for a phase."""
        return self.run(WAIT, WaitRequest(name=self.name, phases=phases), seconds)

    def get(self) -> ElasticJob:
        """The job now."""
        return ElasticJob.parse(client.get(self.cluster, resources.ELASTIC_JOBS, self.name))

    def plans(self) -> list[ScalePlan]:
        """Its manual plans, oldest first."""
        listed = client.list_objects(
            self.cluster, resources.Scope(resources.SCALE_PLANS, self.cluster.namespace)
        )
        plans = [ScalePlan.parse(item) for item in listed.items]
        mine = [plan for plan in plans if plan.job == self.name and not plan.auto]
        return sorted(mine, key=lambda plan: str(plan.metadata.creation_timestamp))

    def await_plan(self, name: str, *phases: ScalePlanPhase, seconds: float = 240) -> ScalePlan:
        """Wait until a plan is in one of these phases."""

        def found() -> ScalePlan | None:
            return next(
                (p for p in self.plans() if p.metadata.name == name and p.status.phase in phases), None
            )

        return self.until(found, seconds, f"plan {name} is {' or '.join(phases)}")

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Its pods of a role."""
        selector = f"{names.JOB_LABEL}={self.name},{names.REPLICA_TYPE_LABEL}={role}"
        scope = resources.Scope(resources.PODS, self.cluster.namespace, label_selector=selector)
        return client.list_objects(self.cluster, scope).items

    def running(self, role: str) -> list[str]:
        """Names of its running pods of a role."""
        return [pod["metadata"]["name"] for pod in self.pods(role) if pod["status"].get("phase") == "Running"]

    def kill(self, pod: str) -> None:
        """SIGKILL every process of a pod that runs on this machine, as the kernel's OOM killer or a lost
        machine would."""
        kill_processes(**{names.ENV_NAMESPACE: self.cluster.namespace, names.ENV_POD_NAME: pod})

    def kill_agent(self, pod: str) -> None:
        """SIGKILL the agent of a pod, and nothing else of it."""
        variables = {names.ENV_NAMESPACE: self.cluster.namespace, names.ENV_POD_NAME: pod}
        kill_processes("edl_workflows", **variables)

    def log(self, pod: str) -> str:
        """What a pod printed."""
        return logs.read(self.cluster, pod)

    def until(self, condition: Callable[[], T | None], seconds: float, what: str) -> T:
        """Wait for a condition's value.

        Raises:
            AssertionError: it did not come; with the job's state.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds} s: {what}; {self.get().status}")
