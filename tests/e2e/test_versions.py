"""A job that a former version has started goes on under controller and master of this version, and back.

Everything is real: `recorded/version_before.tar.xz` is the source of controller, master, agent, library and
training programs at commit 6597e789, the first one whose master reads what a newer one stored. Its workers
keep no acknowledgements. The file is never made anew; it was made from the paths that it contains:

    git archive 6597e789 PATH... | xz -9e > tests/e2e/recorded/version_before.tar.xz
"""

import contextlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.training import CheckpointStore
from tests import local_cluster
from tests.e2e.kills import Counting, CountingJob, Kind, Victim
from tests.e2e.submitted import Container

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDED = Path(__file__).parent / "recorded" / "version_before.tar.xz"
STEP_DELAY = 0.2
"""Seconds; all that happens takes less time than the data lasts."""
MOVES = 10
"""Steps that show that training goes on."""


@dataclass(frozen=True)
class Version:
    """A version of this project.

    Attributes:
        tree: folder with its source.
    """

    tree: Path

    @property
    def environment(self) -> dict[str, str]:
        """Lets Python find this version before the installed one."""
        return {"PYTHONPATH": str(self.tree)}

    @contextlib.contextmanager
    def controller(self, kubeconfig: Path, folder: Path) -> Iterator[None]:
        """Run its controller, whose masters are of this version, too.

        Args:
            kubeconfig: of the cluster.
            folder: for files.
        """
        variables = [{"name": name, "value": value} for name, value in self.environment.items()]
        main = {"name": "main", "image": "local", "env": variables}
        main["command"] = [sys.executable, "-m", "edl_workflows", "master", "run"]
        template = folder / "template.yaml"
        template.write_text(yaml.safe_dump({"spec": {"containers": [main]}}))
        command = [sys.executable, "-m", "edl_workflows", "controller", "run", "--all-namespaces"]
        command += ["--no-leader-elect", "--metrics-port", "0", "--kubeconfig", str(kubeconfig)]
        command += ["--master-template", str(template)]
        # In another folder than the repository, which would come first.
        process = subprocess.Popen(command, cwd=folder, env=os.environ | self.environment)
        try:
            yield
            assert process.poll() is None, "the controller ended"
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()  # has no effect on one that has ended
                process.wait()

    def is_of(self, job: CountingJob, pod: str) -> bool:
        """Whether a pod of the job is of this version."""
        manifest = client.get(job.cluster, resources.PODS, pod)
        variables = manifest["spec"]["containers"][0].get("env") or []
        return {"name": "PYTHONPATH", "value": str(self.tree)} in variables


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local_cluster.LocalCluster]:
    """An embedded cluster without a controller."""
    with local_cluster.cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """The recorded version."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    program = "import edl_workflows; print(edl_workflows.__file__)"
    version = Version(folder)
    environment = os.environ | version.environment
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, check=True
    )
    assert shown.stdout.decode().startswith(str(folder))
    return version


NOW = Version(Path(__file__).parents[2])


def state_of(cluster: Cluster, job: str) -> dict[str, str]:
    """What is in the state ConfigMap."""
    name = names.state_config_map_name(job)
    data: dict[str, str] = client.get(cluster, resources.CONFIG_MAPS, name).get("data") or {}
    return data


def saved_step(job: CountingJob) -> int:
    """The step of the newest checkpoint."""
    newest = CheckpointStore(job.counting.folder / "checkpoints").newest()
    return newest.step if newest is not None else 0


def trains(job: CountingJob, what: str) -> None:
    """Wait until training has moved on."""
    step = saved_step(job)
    job.until(lambda: saved_step(job) >= step + MOVES, 120, f"it trains beyond step {step} {what}")


def replace_master(job: CountingJob, version: Version) -> None:
    """Kill the master, and wait for one of this version to take its place, and for training to go on."""
    former = job.until(lambda: job.strike(Victim.MASTER), 30, "there is a master")
    following = job.until(
        lambda: [pod for pod in job.running(names.MASTER_TYPE) if pod != former], 120, "another master runs"
    )
    assert version.is_of(job, following[0])
    state = state_of(job.cluster, job.name)
    job.until(lambda: state_of(job.cluster, job.name) != state, 120, "the master stores the state")
    trains(job, f"under {following[0]}")
    assert job.running(names.MASTER_TYPE) == following, job.log(following[0])


@pytest.mark.parametrize("kind", Kind)
def test_a_job_goes_on_under_another_version_and_back(
    kind: Kind, running: local_cluster.LocalCluster, before: Version, tmp_path: Path
) -> None:
    """No record is lost, and none is trained more often than with masters of one version. The processes that
    train are those of the former version from the beginning to the end."""
    cluster = running.client()
    container = Container(
        "local", sys.executable, {"env": [{"name": "PYTHONPATH", "value": str(before.tree)}]}
    )
    counting = Counting(kind, tmp_path / "job", STEP_DELAY, container, programs=before.tree / "tests" / "e2e")
    with before.controller(running.kubeconfig, tmp_path):
        job = CountingJob.start(cluster, f"versions-{kind}", counting)
        job.until(lambda: saved_step(job) > 0, 240, "the first checkpoint is made")
        (first,) = job.running(names.MASTER_TYPE)
        assert before.is_of(job, first)
    workers = job.running(names.WORKER_TYPE)
    with NOW.controller(running.kubeconfig, tmp_path):
        trains(job, "under the new controller and the old master")
        assert names.STATE_HEAD_KEY not in state_of(cluster, job.name)
        replace_master(job, NOW)
        assert names.STATE_HEAD_KEY in state_of(cluster, job.name)
    with before.controller(running.kubeconfig, tmp_path):
        trains(job, "under the old controller and the new master")
        replace_master(job, before)
        assert job.running(names.WORKER_TYPE) == workers
        counting.hurry()
        job.wait_phase(JobPhase.SUCCEEDED, seconds=240)
        job.until(job.idle, 60, "all pods have ended")
    assert job.judge([Victim.MASTER, Victim.MASTER]).problems == ()
