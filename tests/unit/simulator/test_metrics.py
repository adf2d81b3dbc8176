"""What a run is judged by."""

import math

import pytest

from edl_workflows.simulator.cluster import JobResult, Run, Sample
from edl_workflows.simulator.metrics import measure


def done(submitted: float, finished: float | None, service: float = 0.0) -> JobResult:
    """A job that waited for 5 s and restarted twice."""
    return JobResult("job", submitted, submitted, finished, 5.0, service, 2)


def test_metrics() -> None:
    """Means over jobs; the time ends with the last decision where a job is incomplete."""
    samples = [Sample(time, 4, 2, 1, 0) for time in (0, 60, 120)]
    found = measure(Run([done(0, 100, 100), done(50, 100, 100), done(60, None)], samples))

    assert (found.jct_mean, found.jct_p50, found.jct_p99, found.makespan) == (75, 50, 100, 120)
    assert (found.pending, found.restarts, found.jobs, found.unfinished) == (5, 2, 3, 1)
    assert found.utilisation == pytest.approx(200 / 480)


def test_use_is_never_more_than_there_is() -> None:
    """What a job that was not complete held after the last completion counts, and so does that time."""
    run = Run([done(0, 60, 60), done(0, None, 600)], [Sample(60 * time, 2, 2, 2, 0) for time in range(11)])
    assert measure(run).utilisation == pytest.approx(660 / 1200)


def test_makespan_of_a_complete_run() -> None:
    """It ends with the last completion, not with the last decision."""
    run = Run([done(50, 100, 100)], [Sample(60, 4, 2, 1, 0), Sample(120, 4, 2, 1, 0)])
    assert (measure(run).makespan, measure(run).utilisation) == (50, 0.5)


def test_the_99th_percentile() -> None:
    """One of a hundred jobs may be slower."""
    found = measure(Run([done(0, finished) for finished in range(1, 101)], []))
    assert (found.jct_p50, found.jct_p99) == (50, 99)


def test_no_jobs() -> None:
    """An empty run has no times, and no error."""
    found = measure(Run([], []))
    assert math.isnan(found.jct_mean)
    assert found.unfinished == 0
