"""TrainingJobs that really train, on any cluster: submit one, scale it, kill its programs, see which chunks
were trained."""

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from edl_workflows.core.jobs.training_job.kind import TRAINING_JOB
from edl_workflows.core.jobs.training_job.model import TrainingJob, TrainingJobPhase
from edl_workflows.core.jobs.training_job.pods import JOB_LABEL
from edl_workflows.core.kubernetes.api import TRAINING_JOBS
from edl_workflows.runtime.kube import client, resources
from tests.e2e.any_job import AnyJob, kill_processes
from tests.e2e.submitted import Container

PROGRAMS = Path(__file__).parents[2] / "dags" / "training"
CHUNKS = 12
"""A pass."""


def manifest(
    name: str, folder: Path, container: Container, delay: float, passes: int, **spec: Any
) -> dict[str, Any]:
    """A fault-tolerant job of a master, two pservers and one to four trainers, now two, that learns the
    digits.

    Args:
        name: the job's.
        folder: for the journal of chunks and the parameters; every pod sees it under this path.
        container: what every container has.
        delay: seconds of rest after a chunk.
        passes: over the data.
        spec: further fields of the job's.
    """
    more = {"containers": [{"name": "main", **container.more}]}
    return {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "metadata": {"name": name},
        "spec": {
            "image": container.image,
            "launcher": "sh",
            "fault_tolerant": True,
            "passes": passes,
            "mountPath": str(folder),
            "volumes": [{"name": "work", "hostPath": {"path": str(folder), "type": "Directory"}}],
            "template": {"spec": {"terminationGracePeriodSeconds": 10, **more}},
            **_roles(container.python, folder, delay),
            **spec,
        },
    }


def _roles(python: str, folder: Path, delay: float) -> dict[str, Any]:
    def runs(role: str, *options: str) -> str:
        return " ".join(["exec", python, str(PROGRAMS / f"trainingjob_{role}.py"), *options])

    small = {"requests": {"cpu": "50m", "memory": "64Mi"}}
    at = ("--folder", str(folder))
    return {
        "master": {
            "entrypoint": runs("master", *at, "--chunks", str(CHUNKS), "--lease-seconds", "5"),
            "resources": small,
        },
        "pserver": {"min-instance": 2, "entrypoint": runs("pserver", *at), "resources": small},
        "trainer": {
            "entrypoint": runs("trainer", "--chunk-delay", str(delay)),
            "min-instance": 1,
            "max-instance": 4,
            "parallelism": 2,
            "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        },
    }


class PaddleTraining(AnyJob[TrainingJob]):
    """A submitted TrainingJob of `manifest`."""

    kind = TRAINING_JOB

    def describe(self) -> str:
        """What a test that fails says of the job."""
        return f"{super().describe()}; {self.trained()}"

    def until_over(self, seconds: float) -> None:
        """Wait for its end, whichever."""
        deadline = time.monotonic() + seconds
        while not self.get().finished:
            assert time.monotonic() < deadline, f"not over in {seconds:.0f} s: {self.get().status}"
            time.sleep(0.2)

    def trained(self) -> Counter[tuple[int, int]]:
        """How often each (pass, chunk) was acknowledged."""
        return Counter((int(one), int(chunk)) for one, chunk, _ in self._journal())

    def chunks_of(self, trainer: int) -> int:
        """How many chunks a trainer has acknowledged."""
        return sum(name == f"{self.name}-trainer-{trainer}" for _, _, name in self._journal())

    def works(self, trainer: int, seconds: float = 120) -> None:
        """Wait until a trainer has trained a further chunk."""
        before = self.chunks_of(trainer)
        self.until(lambda: self.chunks_of(trainer) > before, seconds, f"trainer {trainer} trains")

    def failures(self, role: str) -> list[int | None]:
        """Exit codes of the failed pods of a role, oldest first."""
        return [failure.exit_code for failure in self.get().status.failures if failure.role == role]

    def kill(self, pod: str) -> None:
        """SIGKILL to all processes of a pod on this machine."""
        kill_processes(NAMESPACE=self.cluster.namespace, POD_NAME=f"{self.name}-{pod}")

    def accuracy(self) -> float:
        """Of the parameters that the pservers saved, on the held-out data."""
        sys.path.insert(0, str(PROGRAMS))
        from digits import load, predict  # type: ignore[import-not-found]

        values: dict[str, Any] = {}
        for file in sorted(self.folder.glob("pserver-*.npz")):
            with np.load(file) as saved:
                values |= {name: saved[name] for name in saved.files}
        _, held_out = load()
        return float((predict(values, held_out.images) == held_out.labels).mean())

    def left(self) -> list[str]:
        """Its pods that still run, and its services."""
        mine = f"{JOB_LABEL}={self.name}"
        listed = {
            resource: client.list_objects(
                self.cluster, resources.Scope(resource, self.cluster.namespace, label_selector=mine)
            ).items
            for resource in (resources.PODS, resources.SERVICES)
        }
        pods = [p for p in listed[resources.PODS] if p["status"].get("phase") in ("Pending", "Running")]
        return [one["metadata"]["name"] for one in (*pods, *listed[resources.SERVICES])]

    def _journal(self) -> list[list[str]]:
        file = self.folder / "chunks"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def trainers_come_and_die(job: PaddleTraining, passes: int) -> None:
    """What a user may do to a job, and what may happen to it, while it trains; every chunk of every pass is
    acknowledged once, the job succeeds, and what it used is released."""
    job.await_phase(TrainingJobPhase.RUNNING)
    job.works(0)
    job.works(1)

    job.kill("trainer-1")
    job.until(lambda: job.failures("trainer") == [137], 30, "the failure is counted")
    job.works(1)

    job.scale(trainer=4)
    job.works(3)
    job.scale(trainer=2)
    job.works(0)
    records = [(record.additional, record.status) for record in job.get().status.scale_records]
    assert records == [(2, "True"), (-2, "True")]
    assert job.failures("trainer") == [137], "who is taken away has not failed"

    job.kill("master-0")
    job.until(lambda: job.failures("master") == [137], 30, "the master is replaced")
    job.kill("pserver-1")
    job.until(lambda: job.failures("pserver") == [137], 30, "the pserver is replaced")
    job.works(0)
    job.await_phase(TrainingJobPhase.SUCCEEDED, 300)

    assert job.trained() == dict.fromkeys([(p, c) for p in range(passes) for c in range(CHUNKS)], 1)
    job.until(lambda: job.left() == [], 60, "servers and services are released")
