"""Unmodified scripts for ``torchrun`` under ``edl agent run --nproc-per-node``, on the embedded cluster: one
with DistributedDataParallel, one of Hugging Face's ``Trainer`` and one of Lightning."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from edl_workflows.jobs import names
from edl_workflows.jobs.view import JobPhase
from edl_workflows.kube.connect import Cluster
from edl_workflows.local import testing
from tests.clients.environments import python_environment
from tests.e2e.collective_jobs import (
    TORCHRUN,
    TORCHRUN_HUGGING_FACE,
    TORCHRUN_LIGHTNING,
    CollectiveJob,
    CollectiveTraining,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

START_SECONDS = 300.0
"""To a new group of processes: they import PyTorch on a machine that may have two busy cores."""


class Start(NamedTuple):
    """A start of the script."""

    pid: int
    rank: int
    local_rank: int
    size: int
    restart: int
    step: int


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller."""
    folder = tmp_path_factory.mktemp("cluster")
    with testing.cluster(folder, testing.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def starts(folder: Path) -> list[Start]:
    """All starts, oldest first."""
    file = folder / "starts"
    lines = file.read_text().splitlines() if file.exists() else []
    return [Start(*(int(word) for word in line.split())) for line in lines]


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
    "torchrun": Script(TORCHRUN, "checkpoint.pt", 10_000, 0.1),
    "torchrun-hugging-face": Script(
        TORCHRUN_HUGGING_FACE, "out/checkpoint-*/trainer_state.json", steps=400, delay=0.5
    ),
    "torchrun-lightning": Script(TORCHRUN_LIGHTNING, "out/last.ckpt", steps=400, delay=0.5),
}


def last_saved(folder: Path, script: Script) -> int:
    """When the script saved last, in nanoseconds; 0: never."""
    return max((file.stat().st_mtime_ns for file in folder.glob(script.saved)), default=0)


@pytest.mark.parametrize(
    "name",
    [
        "torchrun",
        pytest.param("torchrun-hugging-face", marks=pytest.mark.long),
        pytest.param("torchrun-lightning", marks=pytest.mark.long),
    ],
)
def test_an_unmodified_script_survives_kills_and_is_scaled(
    name: str, cluster: Cluster, tmp_path: Path
) -> None:
    """A process of the script is killed, an agent, the job's master, a whole pod; then a worker is added.
    Each time the script trains on in a complete group of two processes a worker, from its own checkpoint, and
    in the end it has made all its steps."""
    script, torch = SCRIPTS[name], str(python_environment("torch"))
    options = ("--nproc-per-node", "2")
    training = CollectiveTraining(
        script.program, tmp_path, script.steps, script.delay, workers=2, python=torch, agent_options=options
    )
    job = CollectiveJob.submit(cluster, training.manifest(name))

    def group(size: int, after: int) -> list[Start]:
        """The newest start of each rank of a group that formed after so many starts, once it has saved."""

        def formed() -> list[Start] | None:
            newest = {one.rank: one for one in starts(tmp_path)[after:] if one.size == size}
            return [newest[rank] for rank in range(size)] if len(newest) == size else None

        found = job.until(formed, START_SECONDS, f"a group of {size} has formed")
        before = last_saved(tmp_path, script)
        job.until(
            lambda: last_saved(tmp_path, script) > before,
            START_SECONDS,
            f"the group of {size} has trained and saved",
        )
        return found

    groups = [group(4, 0)]
    assert [(one.rank, one.local_rank) for one in groups[0]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    seen = len(starts(tmp_path))
    os.kill(groups[0][3].pid, signal.SIGKILL)
    groups.append(group(4, seen))
    seen = len(starts(tmp_path))
    job.kill_agent(max(job.running(names.WORKER_TYPE)))
    groups.append(group(4, seen))
    job.kill(job.running(names.MASTER_TYPE)[0])
    seen = len(starts(tmp_path))
    job.kill(max(job.running(names.WORKER_TYPE)))
    groups.append(group(4, seen))
    seen = len(starts(tmp_path))
    plan = job.scale(3, START_SECONDS)
    groups.append(group(6, seen))
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)

    assert plan.status.stall_seconds is not None
    assert [len({(one.restart, one.step) for one in group}) for group in groups] == [1] * len(groups)
    steps, restarts = [group[0].step for group in groups], [group[0].restart for group in groups]
    assert steps == sorted(set(steps)), "each group goes on from a later checkpoint"
    assert restarts == sorted(set(restarts))
