"""What a run is judged by."""

import math

import pytest

from edl_workflows.simulator.cluster import JobResult, Run, Sample
from edl_workflows.simulator.metrics import measure


def done(submitted: float, finished: float | None, service: float = 0.0) -> JobResult:
    """A job that waited for 5 s and restarted twice."""
    return JobResult("job", submitted, submitted, finished, 5.0, service, 2)


def test_metrics() -> None:
    """Means over jobs, time from the first submission to the last completion, and how many are incomplete."""
    samples = [Sample(time, 4, 2, 1, 0) for time in (0, 60, 120)]
    found = measure(Run([done(0, 100, 100), done(50, 100, 100), done(60, None)], samples))

    assert (found.jct_mean, found.jct_p99, found.makespan) == (75, 100, 100)
    assert (found.pending, found.restarts, found.unfinished) == (5, 2, 1)
    assert found.utilisation == pytest.approx(200 / 400)


def test_the_99th_percentile() -> None:
    """One of a hundred jobs may be slower."""
    found = measure(Run([done(0, finished) for finished in range(1, 101)], []))
    assert found.jct_p99 == 99


def test_no_jobs() -> None:
    """An empty run has no times, and no error."""
    found = measure(Run([], []))
    assert math.isnan(found.jct_mean)
    assert found.unfinished == 0
