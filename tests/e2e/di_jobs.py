"""DIJobs that really train, on any cluster: submit one, watch what it learns from, scale it, kill its
programs."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edl_workflows.jobs.api import DI_JOBS
from edl_workflows.jobs.di_job.model import MAIN_CONTAINER, DIJob, DIJobPhase
from edl_workflows.jobs.di_job.pods import JOB_LABEL, RANK
from edl_workflows.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.kube import client, resources
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Scope
from edl_workflows.stages import driver
from edl_workflows.stages.description import R, StageSpec
from edl_workflows.stages.goals import Outputs
from edl_workflows.stages.identity import StageIdentity
from edl_workflows.stages.scale import SCALE, ScaleRequest
from edl_workflows.stages.submit import SUBMIT, SubmitRequest
from tests.e2e.submitted import Container

PROGRAM = Path(__file__).parents[2] / "dags" / "training" / "dijob_cliff.py"
BEST_RETURN = -13.0
"""Of the shortest way along the cliff: 13 steps."""
SLOW = ("--pause", "0.05", "--least-walks", "600")
"""Options of the program: so slow, and so many walks, that there is time to do something to the job."""


def manifest(name: str, folder: Path, container: Container, *options: str, **spec: Any) -> dict[str, Any]:
    """A job of one learner, two collectors and an evaluator that learns to walk along the cliff.

    Args:
        name: the job's.
        folder: for the learner's checkpoint and progress; every pod sees it under this path.
        container: what every container has.
        options: of the program.
        spec: further fields of the job's.
    """
    volume = {"name": "work", "hostPath": {"path": str(folder), "type": "Directory"}}
    tasks = []
    for kind, replicas in (("learner", 1), ("collector", 2), ("evaluator", 1)):
        one = container.runs(str(PROGRAM), kind, "--folder", str(folder), *options)
        one |= {
            "name": MAIN_CONTAINER,
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            "volumeMounts": [{"name": "work", "mountPath": str(folder)}],
        }
        template = {"spec": {"containers": [one], "terminationGracePeriodSeconds": 10}}
        tasks.append({"type": kind, "replicas": replicas, "template": template})
    return {
        "apiVersion": DI_JOBS.api_version,
        "kind": DI_JOBS.kind,
        "metadata": {"name": name},
        "spec": {"volumes": [volume], "tasks": tasks, **spec},
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
        SUBMIT.begin(cluster, SubmitRequest(manifest=dict(wanted)), StageIdentity(owner=f"tests/e2e/{name}"))
        return cls(cluster, name, folder)

    def run(self, stage: StageSpec[R], request: R, seconds: float = 120) -> Outputs:
        """Run a stage to its goal."""
        identity = StageIdentity(owner=f"tests/e2e/{stage.name}/{time.time_ns()}")
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
            assert status.phase is not DIJobPhase.FAILED, status.message
            assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}; {status}; {self.progress()}"
            time.sleep(0.2)

    def pods(self) -> list[dict[str, Any]]:
        """Its pods."""
        scope = Scope(resources.PODS, self.cluster.namespace, label_selector=f"{JOB_LABEL}={self.name}")
        return client.list_objects(self.cluster, scope).items

    def nodes(self) -> list[str]:
        """Where its pods run, by rank."""
        ranked = sorted(self.pods(), key=lambda pod: int(pod["metadata"]["annotations"][RANK]))
        return [str(pod["spec"]["nodeName"]) for pod in ranked]

    def uid(self, short: str) -> str:
        """Of a pod, as ``learner-0``."""
        found = client.get(self.cluster, resources.PODS, f"{self.name}-{short}")
        return str(found["metadata"]["uid"])

    def phase(self, phase: DIJobPhase, seconds: float = 120) -> None:
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

    def kill(self, pod: str) -> None:
        """SIGKILL every process of a pod that runs on this machine."""
        found = [
            p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("HOSTNAME") == pod
        ]
        assert found, f"no process of {pod}"
        for process in found:
            if process.is_running():
                os.kill(process.pid, signal.SIGKILL)


def collectors_come_and_die(job: Job) -> None:
    """Collectors are added, one is killed and replaced, and all but one are taken away; the learner learns
    from whoever there is, is never restarted, and reaches the best return there is."""
    job.phase(DIJobPhase.RUNNING)
    job.learns_from(0)
    job.learns_from(1)
    learner = job.uid("learner-0")

    job.scale(collector=4)
    job.learns_from(3)

    job.kill(f"{job.name}-collector-3")
    job.until(lambda: job.get().status.restarts == 1, 30, "the failure is counted")
    job.phase(DIJobPhase.RUNNING)
    job.learns_from(3)

    job.scale(collector=1)
    job.learns_from(0)
    assert job.uid("learner-0") == learner
    job.phase(DIJobPhase.SUCCEEDED, 240)

    status, told = job.get().status, job.progress()
    assert told["evaluation"] >= BEST_RETURN
    assert (status.restarts, status.reschedules) == (1, 2), "each change is counted once"
    assert set(told["walks"]) == {f"{job.name}-collector-{index}" for index in range(4)}
