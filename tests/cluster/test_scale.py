"""What running jobs cost, by the programs of the test bed: a hundred real masters and the real controller on
an API server and an etcd of their own.

Only counts are judged, which don't depend on the machine's speed; `make bench-scale` measures more jobs for
longer, and also times. The jobs start within a minute, which is the period of their writes, and are counted
for another one.
"""

import pytest

from tests.benchmarks.scale.expected import find_faults
from tests.benchmarks.scale.jobs import Load
from tests.benchmarks.scale.measure import measure
from tests.benchmarks.scale.waste import ECHO, HISTORY
from tests.cluster.bed import build

pytestmark = pytest.mark.timeout(900)

JOBS = 100
WINDOW_SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    """Those of a control plane; a foreign cluster is no substitute."""
    if lack := build.missing():
        pytest.skip(lack)
    build.build()


def test_a_hundred_running_jobs_cost_what_is_recorded() -> None:
    """Writes, bytes, decisions, requests and watch events are within the recorded ranges, and a job makes at
    most 0.05 writes a second."""
    cost = measure(Load(JOBS, WINDOW_SECONDS, waiters=0))

    assert cost.writes <= 0.05
    assert find_faults(cost.counts, JOBS) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("waste", "count"), [(ECHO, "state writes"), (HISTORY, "kilobytes")], ids=[ECHO, HISTORY]
)
def test_a_master_that_writes_more_is_noticed(waste: str, count: str) -> None:
    """One more write a minute, or the history in each status, exceeds the recorded range."""
    cost = measure(Load(30, WINDOW_SECONDS, waiters=0, waste=waste))

    assert any(line.startswith(count) for line in find_faults(cost.counts, 30)), cost
