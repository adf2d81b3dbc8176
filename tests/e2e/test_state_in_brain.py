"""A job whose masters keep its state in a Brain: real processes, and a Brain that is away for a while."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.brain.server import BrainOptions, BrainServer
from tests import local_cluster
from tests.e2e.kills import Counting, CountingJob, Kind, Victim
from tests.unit.services.brain.support import OPERATOR, tokens_file

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

MOVES = 10
"""Steps that show that training goes on."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


@pytest.fixture
def port() -> int:
    """A free one, for a Brain that comes back."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def brain(folder: Path, port: int) -> Iterator[None]:
    """A Brain with its database in a folder."""
    options = BrainOptions(f"sqlite:///{folder}/brain.db", tokens_file(folder), port=port)
    with BrainServer(options).serving():
        yield


def start(cluster: Cluster, counting: Counting, port: int) -> CountingJob:
    """Submit a job whose masters' template names the Brain."""
    counting.folder.mkdir()
    manifest = counting.manifest(f"brain-{counting.kind}")
    variables = {names.ENV_STATE_BRAIN: f"http://127.0.0.1:{port}", names.ENV_BRAIN_TOKEN: OPERATOR}
    environment = [{"name": name, "value": value} for name, value in variables.items()]
    main = {"name": "main", "env": environment}
    manifest["spec"]["replicaSpecs"][names.MASTER_TYPE] = {"template": {"spec": {"containers": [main]}}}
    identity = StageIdentity(owner="tests/e2e/brain")
    name = SUBMIT.begin(cluster, SubmitRequest(manifest=manifest), identity).name
    return CountingJob(cluster, name, counting)


def warns(job: CountingJob, words: str) -> bool:
    """Whether the job's warnings contain these words."""
    return any(words in warning for warning in job.get().status.warnings)


@pytest.mark.parametrize("kind", [Kind.SERVERS, pytest.param(Kind.RING, marks=pytest.mark.long)])
def test_a_job_outlasts_its_brain(kind: Kind, cluster: Cluster, port: int, tmp_path: Path) -> None:
    """While Brain is away, the job trains on and its warnings say so. A master that starts meanwhile waits,
    and then continues. No record is lost."""
    counting = Counting(kind, tmp_path / "job", delay=0.2)
    with brain(tmp_path, port):
        job = start(cluster, counting, port)
        job.wait_step(MOVES)
        name = names.state_config_map_name(job.name)
        note = client.get(cluster, resources.CONFIG_MAPS, name)["data"][names.STATE_KEY]
        assert note.startswith('{"format": "that of Brain http://127.0.0.1:')
    job.until(lambda: warns(job, "the master can't store the job's state"), 120, "the warnings say it")
    step = job.step
    job.until(lambda: job.step >= step + MOVES, 120, "it trains without Brain")

    former = job.strike(Victim.MASTER)
    job.until(lambda: warns(job, "the master waits for the job's state"), 120, "another master waits")
    (following,) = [pod for pod in job.running(names.MASTER_TYPE) if pod != former]
    with brain(tmp_path, port):
        job.until(lambda: not warns(job, "the job's state"), 120, "the warnings go")
        job.wait_step(job.step + MOVES)
        assert job.running(names.MASTER_TYPE) == [following]
        counting.hurry()
        job.wait_phase(JobPhase.SUCCEEDED, seconds=240)
        job.until(job.idle, 60, "all pods have ended")
    verdict = job.judge([Victim.MASTER])
    assert verdict.lost == 0
    assert verdict.problems == ()
