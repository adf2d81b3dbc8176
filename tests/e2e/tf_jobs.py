"""A submitted TFJob that trains, and what tests of any cluster do to it."""

from pathlib import Path

from edl_workflows.core.jobs.tf_job.kind import TF_JOB
from edl_workflows.core.jobs.tf_job.model import TFJob
from edl_workflows.runtime.kube import logs
from tests.e2e.kubeflow_jobs import KubeflowTraining
from tests.e2e.submitted import Container

PROGRAMS = Path(__file__).parents[2] / "dags" / "training"
MIRRORED_STEPS = 400
MIRRORED = (
    "tfjob_mirrored.py",
    *("--steps", str(MIRRORED_STEPS)),
    *("--step-delay", "0.1"),
    *("--save-steps", "20"),
)


class TfTraining(KubeflowTraining[TFJob]):
    """A submitted TFJob, which keeps its checkpoints in `folder`."""

    kind = TF_JOB
    specs_field = "tfReplicaSpecs"
    container = "tensorflow"
    grace = 20

    def submit(self, container: Container, program: tuple[str, ...], **replicas: int) -> None:
        """Submit it: every replica runs the program, a file of the examples and its arguments."""
        file, *arguments = program
        told = (str(PROGRAMS / file), "--checkpoint-dir", str(self.folder), *arguments)
        self.submit_program(container, told, replicas, successPolicy="AllWorkers")

    def step(self) -> int:
        """Of the newest checkpoint."""
        found = [int(f.stem.rpartition("-")[2]) for f in self.folder.glob("model.ckpt-*.index")]
        return max(found, default=-1)

    def first_step(self, pod: str) -> int:
        """The first one that a pod's process tells."""
        told = (line for line in logs.read(self.cluster, pod).splitlines() if line.startswith("step "))
        return int(next(told).split()[1])

    def said(self, pod: str, word: str) -> list[str]:
        """The words of the last line of a pod's log that begins with a word."""
        lines = logs.read(self.cluster, pod).splitlines()
        return [line for line in lines if line.startswith(f"{word} ")][-1].split()


class MirroredTraining(TfTraining):
    """2 workers that average their gradients at every step."""

    def start(self, container: Container) -> list[str]:
        """Submit it, and wait until it trains; its pods' names."""
        self.submit(container, MIRRORED, Worker=2)
        self.until(lambda: self.step() >= 60, 300, "it trains")
        return [f"{self.name}-worker-{index}" for index in (0, 1)]

    def ends_alike(self, pods: list[str], least: int) -> None:
        """The job succeeds; its workers began last at the same checkpoint, of step `least` or later, and end
        with the same weights, which are good."""
        self.await_success()
        restored, trained = ([self.said(pod, word) for pod in pods] for word in ("restored", "trained"))
        assert self.step() == MIRRORED_STEPS
        assert restored[0] == restored[1]
        assert int(restored[0][2]) >= least, "the new processes began with the checkpoint, not at 0"
        assert trained[0] == trained[1]
        assert float(trained[0][-1]) >= 0.93
