"""A submitted job of any kind, and what tests of any cluster do to it."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import psutil

from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.core.jobs.status import Job
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.description import R, StageSpec
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster

JobT = TypeVar("JobT", bound=Job)


@dataclass
class AnyJob(Generic[JobT]):
    """A submitted job.

    Attributes:
        cluster: where.
        name: the job's.
        folder: of the job's programs, at the same path in all pods.
    """

    cluster: Cluster
    name: str
    folder: Path
    kind: ClassVar[Kind]

    @classmethod
    def submit_manifest(cls, cluster: Cluster, manifest: Mapping[str, Any], folder: Path) -> Self:
        """Submit a manifest by the stage."""
        job = cls(cluster, manifest["metadata"]["name"], folder)
        SUBMIT.begin(cluster, SubmitRequest(manifest=dict(manifest)), job._identity("submit"))
        return job

    def _identity(self, stage: str) -> StageIdentity:
        return StageIdentity(owner=f"tests/e2e/{self.name}/{stage}/{time.time_ns()}")

    def run(self, stage: StageSpec[R], request: R, seconds: float = 120) -> Outputs:
        """Run a stage to its goal."""
        deadline = time.time() + seconds
        return driver.run_stage(self.cluster, stage, request, self._identity(stage.name), deadline)

    def scale(self, **replicas: int) -> Outputs:
        """Other replicas by role, as ``edl scale`` asks for them."""
        sizes = {role: ReplicaResourceSpec(replicas=count) for role, count in replicas.items()}
        return self.run(SCALE, ScaleRequest(job=self.name, kind=self.kind.name, replicas=sizes))

    def get(self) -> JobT:
        """The job now."""
        stored = client.get(self.cluster, self.kind.source.api, self.name)
        job: JobT = self.kind.model.parse(stored)  # type: ignore[assignment]  # `kind` is the row of `JobT`
        return job

    def describe(self) -> str:
        """What a test that fails says of the job."""
        return str(self.get().status)

    def until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something; a job that fails meanwhile fails the test."""
        deadline = time.monotonic() + seconds
        while not true():
            status = self.get().status
            assert status.phase is None or str(status.phase) != "Failed", status.message
            assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}; {self.describe()}"
            time.sleep(0.1)

    def await_phase(self, phase: str, seconds: float = 120) -> None:
        """Wait for a phase."""
        self.until(lambda: self.get().status.phase == phase, seconds, f"phase {phase}")


def kill_processes(module: str = "", **environment: str) -> None:
    """SIGKILL every process on this machine that has these variables in its environment, as the kernel's OOM
    killer or a lost machine would end a pod.

    Args:
        module: only those that run this module by ``python -m``; "": all.
        environment: the variables.
    """
    found = [
        process
        for process in psutil.process_iter(["environ", "cmdline"])
        if environment.items() <= (process.info["environ"] or {}).items()
        and (not module or ["-m", module] == (process.info["cmdline"] or [])[1:3])
    ]
    assert found, f"no process with {environment}"
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):  # a pod's first process takes the others with it
            process.kill()
