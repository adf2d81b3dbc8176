"""Real kills of every role at every moment, on the embedded cluster: no record is lost, no job is stuck, none
ends twice.

The training programs need no framework: their model counts how often each record of each epoch was trained
into it, and they stop where the kill is to come. A row is named by the job's kind, who is killed and when.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.counting import EPOCHS, RECORDS
from tests.e2e.kills import (
    VICTIMS,
    WARM_STEPS,
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
    (Kind.SERVERS, Victim.WORKER, Moment.EPOCH),
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
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True, grace=5.0)) as running:
        yield running.client()


@pytest.mark.parametrize(("kind", "victim", "moment"), ROWS)
def test_kill(kind: Kind, victim: Victim, moment: Moment, cluster: Cluster, tmp_path: Path) -> None:
    """The job succeeds once, and its model has each record of each epoch: exactly once if the job is
    collective, otherwise with as few repetitions as the workers train at one moment."""
    counting = prepare(Counting(kind, tmp_path), moment)
    job = CountingJob.start(cluster, f"{kind}-{victim}-{moment}", counting)
    kill_at(job, victim, moment)

    verdict = job.judge([victim])
    print(verdict)
    assert verdict.problems == ()


@pytest.mark.long
def test_a_job_that_is_submitted_again_trains_the_rest(cluster: Cluster, tmp_path: Path) -> None:
    """The job is deleted during an epoch, and submitted again with the same folder. Model and data continue
    together: no record is lost, and only records that the other worker held are trained twice."""
    counting = Counting(Kind.SERVERS, tmp_path)
    first = CountingJob.start(cluster, "before", counting)
    first.wait_step(3 * WARM_STEPS)
    first.run(DELETE, DeleteRequest(name=first.name))
    counting.hurry()
    again = CountingJob.start(cluster, "again", counting)
    again.wait_phase(JobPhase.SUCCEEDED, seconds=240)
    again.until(again.idle, 60, "all pods have ended")

    verdict = again.judge([Victim.SERVER])
    print(verdict)
    assert verdict.problems == ()
    status = again.get().status
    assert status.warnings == []
    assert status.progress is not None
    assert status.progress.records == RECORDS * EPOCHS
