"""Real kills of every role at every moment, on the embedded cluster: no record is lost, no job is stuck, none ends twice.

The training programs need no framework: their model counts how often each record of each epoch was trained into it, and
they stop where the kill is to come. A row is named by the job's kind, who is killed and when.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.kube.connect import Cluster
from edl_workflows.local import testing
from tests.e2e.kills import (
    VICTIMS,
    Counting,
    CountingJob,
    Kind,
    Moment,
    Victim,
    kill_at,
    prepare,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

TELLING = {
    (Kind.SERVERS, Victim.SERVER, Moment.MIGRATION),
    (Kind.SERVERS, Victim.CHIEF, Moment.CHECKPOINT),
    (Kind.SERVERS, Victim.MASTER, Moment.LAST_STEP),
    (Kind.RING, Victim.CHIEF_PROCESS, Moment.EPOCH),
    (Kind.RING, Victim.MASTER, Moment.MIGRATION),
    (Kind.RING, Victim.WORKER, Moment.LAST_STEP),
}
"""Rows that are not left out where time is short."""

ROWS = [
    pytest.param(
        kind,
        victim,
        moment,
        id=f"{kind}-{victim}-{moment}",
        marks=[] if (kind, victim, moment) in TELLING else [pytest.mark.long],
    )
    for kind in Kind
    for victim in VICTIMS[kind]
    for moment in Moment
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One embedded cluster with its controller for all tests here."""
    folder = tmp_path_factory.mktemp("cluster")
    with testing.cluster(folder, testing.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


@pytest.mark.parametrize(("kind", "victim", "moment"), ROWS)
def test_kill(kind: Kind, victim: Victim, moment: Moment, cluster: Cluster, tmp_path: Path) -> None:
    """The job succeeds, once; each record of each epoch is in its model: exactly once if it is collective, else at most as
    many twice as workers held."""
    counting = Counting(kind, tmp_path)
    prepare(counting, moment)
    job = CountingJob.start(cluster, f"{kind}-{victim}-{moment}", counting)
    kill_at(job, victim, moment)

    verdict = job.judge(kills=1)
    print(verdict)
    assert verdict.problems == ()
