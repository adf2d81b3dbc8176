"""An unmodified script for ``torchrun`` under ``edl agent run --nproc-per-node``, on the embedded cluster."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from edl_workflows.jobs import names
from edl_workflows.jobs.view import JobPhase
from edl_workflows.kube.connect import Cluster
from edl_workflows.local import testing
from tests.clients.environments import python_environment
from tests.e2e.collective_jobs import TORCHRUN, CollectiveJob, CollectiveTraining

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 10_000
"""More than are made before the test lets the script hurry."""
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


def test_a_torchrun_script_survives_kills_and_is_scaled(cluster: Cluster, tmp_path: Path) -> None:
    """A process of the script is killed, the job's master, a whole pod; then a worker is added. Each time the
    script trains on in a complete group of two processes a worker, from its own checkpoint, and in the end it
    has made all its steps."""
    torch = str(python_environment("torch"))
    options = ("--nproc-per-node", "2")
    training = CollectiveTraining(
        TORCHRUN, tmp_path, STEPS, 0.1, workers=2, python=torch, agent_options=options
    )
    job = CollectiveJob.submit(cluster, training.manifest("torchrun"))

    def group(size: int, after: int) -> list[Start]:
        """The newest start of each rank of a group that formed after so many starts, once it has saved."""

        def formed() -> list[Start] | None:
            newest = {one.rank: one for one in starts(tmp_path)[after:] if one.size == size}
            return [newest[rank] for rank in range(size)] if len(newest) == size else None

        found = job.until(formed, START_SECONDS, f"a group of {size} has formed")
        checkpoint = tmp_path / "checkpoint.pt"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        job.until(
            lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns > before,
            START_SECONDS,
            f"the group of {size} has trained and saved",
        )
        return found

    first = group(4, 0)
    assert [(one.rank, one.local_rank) for one in first] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    seen = len(starts(tmp_path))
    os.kill(first[3].pid, signal.SIGKILL)
    second = group(4, seen)
    job.kill(job.running(names.MASTER_TYPE)[0])
    seen = len(starts(tmp_path))
    job.kill(max(job.running(names.WORKER_TYPE)))
    third = group(4, seen)
    seen = len(starts(tmp_path))
    plan = job.scale(3, START_SECONDS)
    fourth = group(6, seen)
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)

    assert plan.status.stall_seconds is not None
    groups = [first, second, third, fourth]
    assert [len({(one.restart, one.step) for one in group}) for group in groups] == [1, 1, 1, 1]
    steps, restarts = [group[0].step for group in groups], [group[0].restart for group in groups]
    assert steps == sorted(set(steps)), "each group goes on from a later checkpoint"
    assert restarts == sorted(set(restarts))
