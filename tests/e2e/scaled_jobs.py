"""Submitted ElasticJobs that plan their own size, and what tests see of them."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.jobs import description
from tests.e2e.submitted import Container, SubmittedJob

PROGRAM = Path(__file__).parent / "scaled_digits.py"
PERIOD = 80.0
"""Seconds between two plans in these tests: a sample each 4 s, a look each 8 s, after 16 s of the same
nodes."""


@dataclass(frozen=True)
class Size:
    """Nodes of a role, and what each may use."""

    replicas: int
    cpu: str
    memory: str = "2Gi"
    auto_scale: bool = True


@dataclass(frozen=True)
class ScaledTraining:
    """What a job trains, and how far it may grow.

    Attributes:
        folder: for checkpoints, at the same path in all pods.
        loads: arguments of the program.
        roles: by role.
        limits: of the whole job.
        autoscale: what the annotation says; "" for none.
    """

    folder: Path
    loads: tuple[str, ...]
    roles: Mapping[str, Size]
    limits: Mapping[str, str] = field(default_factory=lambda: {"cpu": "6", "memory": "32Gi"})
    autoscale: str = ""

    def manifest(self, name: str) -> dict[str, Any]:
        """The job."""
        metadata: dict[str, Any] = {"name": name}
        if self.autoscale:
            metadata["annotations"] = {autoscaling.ANNOTATION: self.autoscale}
        period = {"name": names.ENV_AUTOSCALE_PERIOD, "value": str(PERIOD)}
        master = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "env": [period]}]}}}
        roles: dict[str, Any] = {role: self._role(size) for role, size in self.roles.items()}
        return {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticJob",
            "metadata": metadata,
            "spec": {
                "optimizeMode": "single-job",
                "resourceLimits": dict(self.limits),
                "replicaSpecs": {**roles, "dlrover-master": master},
            },
        }

    def _role(self, size: Size) -> dict[str, Any]:
        container = Container("local", sys.executable)
        agent = ("-m", "edl_workflows", "agent", "run", "--", container.python)
        main = container.runs(*agent, str(PROGRAM), str(self.folder), *self.loads)
        amounts = {"cpu": size.cpu, "memory": size.memory}
        limit = {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}
        main |= {
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": [{"name": "work", "mountPath": str(self.folder)}],
            "env": [{"name": "CPU_LIMIT_MILLICORES", "valueFrom": limit}],
        }
        volume = {"name": "work", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        pod = {"containers": [main], "volumes": [volume]}
        return {"replicas": size.replicas, "autoScale": size.auto_scale, "template": {"spec": pod}}


class ScaledJob(SubmittedJob):
    """A submitted job that plans its own size."""

    def speed(self, seconds: float) -> float:
        """Steps a second over so long."""
        begun, began = self._measure_step()
        time.sleep(seconds)
        ended, end = self._measure_step()
        return (ended - begun) / (end - began).total_seconds()

    def planned(self) -> AutoscalingStatus:
        """What its master says; empty before it says anything."""
        return self.get().status.autoscaling or AutoscalingStatus()

    def described(self) -> str:
        """What `edl describe` prints."""
        return "\n".join(
            description.description_lines(
                description.collect_description(self.cluster, "ElasticJob", self.name)
            )
        )

    def _measure_step(self) -> tuple[int, datetime]:
        """The newest step, and when it was measured: the status is written for who waits for a step."""
        before = self.get().status.progress
        self.wait_step((before.step if before else 0) + 1)
        progress = self.get().status.progress
        assert progress is not None
        assert progress.time is not None
        return progress.step, progress.time
