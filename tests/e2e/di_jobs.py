"""DIJobs that really train, on any cluster: submit one, watch what it learns from, scale it, kill its programs."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_workflows.jobs.api import DI_JOBS
from edl_workflows.jobs.di_job.model import DIJob, Phase
from edl_workflows.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import driver
from edl_workflows.stages.goals import Outputs
from edl_workflows.stages.identity import Identity
from edl_workflows.stages.requests import R, Stage
from edl_workflows.stages.scale import SCALE, ScaleRequest
from edl_workflows.stages.submit import SUBMIT, SubmitRequest

PROGRAM = Path(__file__).parents[2] / "dags" / "training" / "dijob_cliff.py"


def manifest(
    name: str, folder: Path, container: Mapping[str, Any], *options: str, **spec: Any
) -> dict[str, Any]:
    """A job of one learner, two collectors and an evaluator that learns to walk along the cliff.

    Args:
        name: the job's.
        folder: for the learner's checkpoint and progress; every pod sees it under this path.
        container: image, and what else a container needs.
        options: of the program.
        spec: further fields of the job's.
    """
    program = [*container.get("command", [sys.executable, str(PROGRAM)])]
    tasks = []
    for kind, replicas in (("learner", 1), ("collector", 2), ("evaluator", 1)):
        one = {
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            **container,
            "name": "di-container",
            "command": [*program, kind, "--folder", str(folder), *options],
        }
        template = {"spec": {"containers": [one], "terminationGracePeriodSeconds": 10}}
        tasks.append({"type": kind, "replicas": replicas, "template": template})
    return {
        "apiVersion": DI_JOBS.api_version,
        "kind": DI_JOBS.kind,
        "metadata": {"name": name},
        "spec": {"tasks": tasks, **spec},
    }


@dataclass
class Job:
    """A submitted DIJob.

    Attributes:
        folder: see `manifest`.
    """

    cluster: Cluster
    name: str
    folder: Path

    @classmethod
    def submit(cls, cluster: Cluster, wanted: Mapping[str, Any], folder: Path) -> "Job":
        """Submit what `manifest` made."""
        name = wanted["metadata"]["name"]
        SUBMIT.begin(cluster, SubmitRequest(manifest=dict(wanted)), Identity(owner=f"tests/e2e/{name}"))
        return cls(cluster, name, folder)

    def run(self, stage: Stage[R], request: R, seconds: float = 120) -> Outputs:
        """Run a stage to its goal."""
        identity = Identity(owner=f"tests/e2e/{stage.name}/{time.time_ns()}")
        return driver.run_stage(self.cluster, stage, request, identity, time.time() + seconds)

    def scale(self, **replicas: int) -> Outputs:
        """Other replicas by task, as ``edl scale`` asks for them."""
        sizes = {task: ReplicaResourceSpec(replicas=count) for task, count in replicas.items()}
        return self.run(SCALE, ScaleRequest(job=self.name, kind=DI_JOBS.kind, replicas=sizes))

    def get(self) -> DIJob:
        """The job as it is."""
        return DIJob.parse(client.get(self.cluster, DI_JOBS, self.name))

    def until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition; a job that fails ends the test."""
        deadline = time.monotonic() + seconds
        while not true():
            status = self.get().status
            assert status.phase is not Phase.FAILED, status.message
            assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}; {status}; {self.progress()}"
            time.sleep(0.2)

    def phase(self, phase: Phase, seconds: float = 120) -> None:
        """Wait for a phase."""
        self.until(lambda: self.get().status.phase is phase, seconds, f"phase {phase}")

    def progress(self) -> dict[str, Any]:
        """What the learner tells: walks by collector, the newest evaluation."""
        file = self.folder / "progress.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def walks(self, index: int) -> int:
        """How many walks of a collector the learner has learnt from."""
        return int(self.progress().get("walks", {}).get(f"{self.name}-collector-{index}", 0))

    def learns_from(self, index: int, seconds: float = 60) -> None:
        """Wait until the learner has learnt from more walks of a collector."""
        before = self.walks(index)
        self.until(lambda: self.walks(index) > before, seconds, f"collector {index} hands in walks")
