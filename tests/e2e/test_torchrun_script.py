"""Unmodified scripts for ``torchrun`` under ``edl agent run --nproc-per-node``, on the embedded cluster."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.torchrun_jobs import START_SECONDS, TorchrunJob, assert_progress

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


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
    """A process of the script, an agent, the job's master and a whole pod are killed, and then a worker is
    added. Each time the script continues in a complete group of two processes per worker from its own
    checkpoint, and makes all its steps."""
    job = TorchrunJob.start(cluster, name, tmp_path, processes=2)
    groups = [job.group(4, 0)]
    assert [(one.rank, one.local_rank) for one in groups[0]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    seen = len(job.starts)
    os.kill(groups[0][3].pid, signal.SIGKILL)
    groups.append(job.group(4, seen))
    seen = len(job.starts)
    job.kill_agent(max(job.running(names.WORKER_TYPE)))
    groups.append(job.group(4, seen))
    job.kill(job.running(names.MASTER_TYPE)[0])
    seen = len(job.starts)
    job.kill(max(job.running(names.WORKER_TYPE)))
    groups.append(job.group(4, seen))
    seen = len(job.starts)
    plan = job.scale(3, START_SECONDS)
    groups.append(job.group(6, seen))
    job.training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)

    assert plan.status.stall_seconds is not None
    assert_progress(groups)
