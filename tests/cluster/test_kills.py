"""Real kills in real pods: three of the rows of `tests.e2e.test_kills`, with a job of either kind."""

import pytest

from tests.cluster.training import Place, container
from tests.e2e.kills import Counting, CountingJob, Kind, Moment, Victim, kill_at, prepare

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("kind", "victim", "moment"),
    [
        pytest.param(kind, victim, moment, id=f"{kind}-{victim}-{moment}")
        for kind, victim, moment in (
            (Kind.SERVERS, Victim.CHIEF, Moment.CHECKPOINT),
            (Kind.RING, Victim.CHIEF_PROCESS, Moment.EPOCH),
            (Kind.RING, Victim.MASTER, Moment.MIGRATION),
        )
    ],
)
def test_kill(kind: Kind, victim: Victim, moment: Moment, here: Place) -> None:
    """The job succeeds once, and no record is lost. A collective job trains each record exactly once."""
    name = f"{kind}-{victim}-{moment}"
    counting = prepare(Counting(kind, here.folder / name, container=container(here.bed)), moment)
    job = CountingJob.start(here.cluster, name, counting)
    kill_at(job, victim, moment)

    verdict = job.judge([victim])
    print(verdict)
    assert verdict.problems == ()
