"""DIJobs that really train, on any cluster: submit one, watch what it learns from, scale it, kill its
programs."""

import json
from pathlib import Path
from typing import Any

from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.jobs.di_job.model import MAIN_CONTAINER, DIJob, DIJobPhase
from edl_workflows.core.jobs.di_job.pods import JOB_LABEL, RANK
from edl_workflows.core.kubernetes.api import DI_JOBS
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.resources import Scope
from tests.e2e.any_job import AnyJob, kill_processes
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


class DITraining(AnyJob[DIJob]):
    """A submitted DIJob of `manifest`."""

    kind = DI_JOB

    def describe(self) -> str:
        """What a test that fails says of the job."""
        return f"{super().describe()}; {self.progress()}"

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


def collectors_come_and_die(job: DITraining) -> None:
    """Collectors are added, one is killed and replaced, and all but one are taken away; the learner learns
    from whoever there is, is never restarted, and reaches the best return there is."""
    job.await_phase(DIJobPhase.RUNNING)
    job.learns_from(0)
    job.learns_from(1)
    learner = job.uid("learner-0")

    job.scale(collector=4)
    job.learns_from(3)

    kill_processes(HOSTNAME=f"{job.name}-collector-3")
    job.until(lambda: job.get().status.restarts == 1, 30, "the failure is counted")
    job.await_phase(DIJobPhase.RUNNING)
    job.learns_from(3)

    job.scale(collector=1)
    job.learns_from(0)
    assert job.uid("learner-0") == learner
    job.await_phase(DIJobPhase.SUCCEEDED, 240)

    status, told = job.get().status, job.progress()
    assert told["evaluation"] >= BEST_RETURN
    assert (status.restarts, status.reschedules) == (1, 2), "each change is counted once"
    assert set(told["walks"]) == {f"{job.name}-collector-{index}" for index in range(4)}
