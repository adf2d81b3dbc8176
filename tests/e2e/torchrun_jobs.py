"""Jobs of unmodified scripts for ``torchrun`` under ``edl agent run --nproc-per-node``: one with
DistributedDataParallel, one of Hugging Face's ``Trainer`` and one of Lightning."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from edl_workflows.runtime.kube.connect import Cluster
from tests.clients.environments import python_environment
from tests.e2e.collective_jobs import (
    LOCAL,
    TORCHRUN,
    TORCHRUN_HUGGING_FACE,
    TORCHRUN_LIGHTNING,
    CollectiveJob,
    CollectiveTraining,
)
from tests.e2e.submitted import Container

START_SECONDS = 300.0
"""To a new group of processes: they import PyTorch on a machine that may have two busy cores."""
WORKERS = 2
"""To begin with."""


class Start(NamedTuple):
    """A start of the script."""

    pid: int
    rank: int
    local_rank: int
    size: int
    restart: int
    step: int


@dataclass(frozen=True)
class Script:
    """An unmodified script.

    Attributes:
        program: its file.
        saved: a pattern for the file that each of its checkpoints ends with.
        steps: more than are made before the test lets the script hurry.
        delay: seconds of rest after each step.
    """

    program: Path
    saved: str
    steps: int
    delay: float


SCRIPTS = {
    "torchrun": Script(TORCHRUN, "checkpoint.pt", steps=400, delay=0.5),
    "torchrun-hugging-face": Script(
        TORCHRUN_HUGGING_FACE, "out/checkpoint-*/trainer_state.json", steps=400, delay=0.5
    ),
    "torchrun-lightning": Script(TORCHRUN_LIGHTNING, "out/last.ckpt", steps=400, delay=0.5),
}


@dataclass
class TorchrunJob(CollectiveJob):
    """A submitted job of a script.

    Attributes:
        script: which.
        training: what the job trains.
    """

    script: Script
    training: CollectiveTraining

    @classmethod
    def start(
        cls, cluster: Cluster, name: str, folder: Path, processes: int, container: Container = LOCAL
    ) -> Self:
        """Submit a job.

        Args:
            cluster: where.
            name: of the script in `SCRIPTS`, and of the job.
            folder: of the script.
            processes: of each worker.
            container: of each pod.
        """
        script = SCRIPTS[name]
        training = CollectiveTraining(
            script.program,
            folder,
            script.steps,
            script.delay,
            workers=WORKERS,
            python=str(python_environment("torch")),
            agent_options=("--nproc-per-node", str(processes)),
            container=container,
        )
        job = CollectiveJob.submit(cluster, training.manifest(name))
        return cls(job.cluster, job.name, script, training)

    @property
    def starts(self) -> list[Start]:
        """All starts of the script, oldest first."""
        file = self.training.folder / "starts"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Start(*(int(word) for word in line.split())) for line in lines]

    def group(self, size: int, after: int) -> list[Start]:
        """The newest start of each rank of a group that formed after so many starts, once it has saved."""

        def formed() -> list[Start] | None:
            newest = {one.rank: one for one in self.starts[after:] if one.size == size}
            return [newest[rank] for rank in range(size)] if len(newest) == size else None

        found = self.until(formed, START_SECONDS, f"a group of {size} has formed")
        before = self._last_saved()
        self.until(
            lambda: self._last_saved() > before,
            START_SECONDS,
            f"the group of {size} has trained and saved",
        )
        return found

    def _last_saved(self) -> int:
        """When the script saved last, in nanoseconds; 0: never."""
        files = self.training.folder.glob(self.script.saved)
        return max((file.stat().st_mtime_ns for file in files), default=0)


def assert_progress(groups: list[list[Start]]) -> None:
    """Assert that all ranks of a group start with the same restart count from the same checkpoint, and that
    both are higher than in the previous group."""
    assert [len({(one.restart, one.step) for one in group}) for group in groups] == [1] * len(groups)
    steps, restarts = [group[0].step for group in groups], [group[0].restart for group in groups]
    assert steps == sorted(set(steps)), "each group goes on from a later checkpoint"
    assert restarts == sorted(set(restarts))
