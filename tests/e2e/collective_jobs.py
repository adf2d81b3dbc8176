"""Submitted collective jobs (``AllreduceStrategy``), and what their members note of each step."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlan, ScalePlanPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from tests.e2e.records import consumed
from tests.e2e.submitted import Container, SubmittedJob

RING = Path(__file__).parent / "ring_digits.py"
MIRRORED = Path(__file__).parent / "mirrored_digits.py"
TORCH = Path(__file__).parent / "torch_digits.py"
HUGGING_FACE = Path(__file__).parent / "hugging_face_sums.py"
LIGHTNING = Path(__file__).parent / "lightning_digits.py"
TORCHRUN = Path(__file__).parent / "torchrun_script.py"
TORCHRUN_HUGGING_FACE = Path(__file__).parent / "torchrun_hugging_face.py"
TORCHRUN_LIGHTNING = Path(__file__).parent / "torchrun_lightning.py"
LOCAL = Container("local", sys.executable)
"""Of pods of the embedded cluster."""
_LOSS = re.compile(r"^step (\d+) of (\d+) loss (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class CollectiveTraining:
    """What a collective job trains.

    A change fails once the job has ended, and a new member first imports its framework. So `epochs` and
    `delay` make the job last longer than all changes of a test, on a busy machine, too, and the test ends the
    delay by `hurry`.

    Attributes:
        program: its file, one of those above.
        folder: for checkpoints and notes, at the same path in all pods.
        epochs: how often all data is seen.
        delay: seconds of rest after each step, until `hurry`.
        workers: to begin with.
        rendezvous: of the job's spec.
        python: the interpreter that runs the program.
        agent_options: of ``edl agent run``.
        container: of each pod.
    """

    program: Path
    folder: Path
    epochs: int
    delay: float = 0.05
    workers: int = 1
    rendezvous: dict[str, Any] = field(default_factory=lambda: {"maxNodes": 3, "waitingTimeoutSeconds": 5})
    python: str = sys.executable
    agent_options: tuple[str, ...] = ()
    container: Container = LOCAL

    def hurry(self) -> None:
        """No more rest after a step."""
        (self.folder / "hurry").touch()

    def manifest(self, name: str) -> dict[str, Any]:
        """The job."""
        run = ("-m", "edl_workflows", "agent", "run", *self.agent_options)
        agent = (*run, "--", self.python, str(self.program))
        options = ("--epochs", str(self.epochs), "--step-delay", str(self.delay))
        main = self.container.runs(*agent, str(self.folder), *options)
        main["volumeMounts"] = [{"name": "work", "mountPath": str(self.folder)}]
        volume = {"name": "work", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        template = {"spec": {"containers": [main], "volumes": [volume]}}
        return {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticJob",
            "metadata": {"name": name},
            "spec": {
                "distributionStrategy": "AllreduceStrategy",
                "optimizeMode": "manual",
                "rendezvous": self.rendezvous,
                "replicaSpecs": {"worker": {"replicas": self.workers, "template": template}},
            },
        }


class CollectiveJob(SubmittedJob):
    """A submitted collective job."""

    def scale(self, workers: int, seconds: float = 240.0) -> ScalePlan:
        """Change the number of workers by the stage, as a pipeline does; the plan that carried it out."""
        before = {plan.metadata.name for plan in self.plans()}
        self.run(
            SCALE, ScaleRequest(job=self.name, replicas={"worker": ReplicaResourceSpec(replicas=workers)})
        )
        (made,) = [plan for plan in self.plans() if plan.metadata.name not in before]
        assert made.status.phase is ScalePlanPhase.SUCCEEDED, made.status
        return made


def losses(job: SubmittedJob, pods: list[str]) -> dict[int, float]:
    """Loss of each step, as rank 0 of each version printed it; of a step that was made twice the later."""
    found: dict[int, float] = {}
    for pod in pods:
        found |= {int(step): float(loss) for step, _, loss in _LOSS.findall(job.log(pod))}
    return found


def worlds(folder: Path) -> dict[int, int]:
    """How many members noted each step."""
    members: dict[int, set[str]] = {}
    for name, _, step, _ in consumed(folder):
        members.setdefault(step, set()).add(name)
    return {step: len(names) for step, names in sorted(members.items())}
