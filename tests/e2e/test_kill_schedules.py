"""A few random kill schedules; ``make kill-schedules`` plays as many as are wanted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.kill_schedules import draw, play

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

SEED = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


def test_seed_says_it_all() -> None:
    """The same seed gives the same schedules."""
    assert [draw(SEED, number) for number in range(9)] == [draw(SEED, number) for number in range(9)]
    assert draw(SEED, 1) != draw(SEED + 1, 1)


@pytest.mark.parametrize("number", range(1, 6))
def test_schedule(number: int, cluster: Cluster, tmp_path: Path) -> None:
    """However its processes are killed, the job succeeds once, and no record is lost."""
    report = play(cluster, draw(SEED, number), tmp_path)
    print(report)
    assert report.problems == ()
