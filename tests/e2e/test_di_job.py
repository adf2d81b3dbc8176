"""DIJobs as users run them: embedded cluster, controller, and an agent that really learns, with real kills."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl_workflows.jobs.di_job.model import Phase
from edl_workflows.kube import logs
from edl_workflows.kube.connect import Cluster
from edl_workflows.local import testing
from tests.e2e.di_jobs import Job, manifest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

IMAGE = {"image": "local"}
PACE = ("--pause", "0.05", "--least-walks", "600")
"""So slow, and so many walks, that there is time to do something to the job."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    with testing.cluster(
        tmp_path_factory.mktemp("cluster"), testing.Settings(controller=True, grace=5.0)
    ) as running:
        yield running.client()


def kill(pod: str) -> None:
    """SIGKILL to the processes of a pod."""
    found = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("HOSTNAME") == pod]
    assert found, f"no process of {pod}"
    for process in found:
        if process.is_running():
            os.kill(process.pid, signal.SIGKILL)


def test_an_agent_learns_while_collectors_come_and_die(cluster: Cluster, tmp_path: Path) -> None:
    """Learner, collectors and evaluator reach the best return there is; meanwhile collectors are added, one is killed and
    replaced, and all but one are taken away. The learner is never restarted."""
    job = Job.submit(cluster, manifest("cliff", tmp_path, IMAGE, *PACE), tmp_path)
    job.phase(Phase.RUNNING)
    job.learns_from(0)
    job.learns_from(1)

    job.scale(collector=4)
    job.learns_from(3)

    kill("cliff-collector-3")
    job.until(lambda: job.get().status.restarts == 1, 30, "the failure is counted")
    job.phase(Phase.RUNNING)
    job.learns_from(3)

    job.scale(collector=1)
    job.learns_from(0)
    job.phase(Phase.SUCCEEDED, 200)

    status, told = job.get().status, job.progress()
    assert told["evaluation"] >= -13
    assert (status.restarts, status.reschedules) == (1, 2), "each change counted once"
    assert set(told["walks"]) == {f"cliff-collector-{i}" for i in range(4)}
    assert logs.read(cluster, "cliff-learner-0").count("walks 0 of 0") == 1, "the learner began once"
