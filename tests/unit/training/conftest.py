"""A fake master, and the environment of a pod whose agent talks to it."""

from collections.abc import Callable, Iterator

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import TOKEN, FakeMaster, running_master


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    """A master that listens."""
    with running_master() as running:
        yield running


@pytest.fixture
def pod_env(master: FakeMaster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of the pod of worker 0. What a killed agent keeps in memory goes with the test's
    folders."""
    return {
        names.ENV_SHARED_MEMORY: str(tmp_path_factory.mktemp("memory")),
        names.ENV_MASTER_ADDR: master.address,
        names.ENV_JOB_TOKEN: TOKEN,
        names.ENV_JOB_NAME: "demo",
        names.ENV_NAMESPACE: "default",
        names.ENV_POD_NAME: "demo-edljob-worker-0",
        names.ENV_NODE_TYPE: "worker",
        names.ENV_NODE_ID: "0",
        names.ENV_NODE_RANK: "0",
    }


@pytest.fixture
def environment(pod_env: dict[str, str]) -> NodeEnvironment:
    """The same, read."""
    return NodeEnvironment.read(pod_env)


@pytest.fixture
def connected(master: FakeMaster, environment: NodeEnvironment) -> Iterator[Callable[[int], Job]]:
    """Makes jobs of a version for worker 0; closed at the end."""
    jobs: list[Job] = []

    def connect(version: int = 1) -> Job:
        jobs.append(Job(environment, version, MasterClient(master.url, TOKEN)))
        return jobs[-1]

    yield connect
    for job in jobs:
        job.close()
