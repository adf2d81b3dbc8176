"""Metrics of runs."""

import math

import pytest

from edl_workflows.simulator.cluster import ClusterSample, JobResult, SimulationRun
from edl_workflows.simulator.metrics import measure_run


def done(submitted: float, finished: float | None, service: float = 0.0) -> JobResult:
    """A job that waited for 5 s and restarted twice."""
    return JobResult("job", submitted, submitted, finished, 5.0, service, 2)


def test_metrics() -> None:
    """Means over jobs. If a job is incomplete, the time ends with the last decision."""
    samples = [ClusterSample(time, 4, 2, 1, 0) for time in (0, 60, 120)]
    found = measure_run(SimulationRun([done(0, 100, 100), done(50, 100, 100), done(60, None)], samples))

    assert (found.jct_mean, found.jct_p50, found.jct_p99, found.makespan) == (75, 50, 100, 120)
    assert (found.pending, found.restarts, found.jobs, found.unfinished) == (5, 2, 3, 1)
    assert found.utilisation == pytest.approx(200 / 480)


def test_use_is_never_more_than_there_is() -> None:
    """GPUs that an incomplete job held after the last completion are counted, and so is that time."""
    run = SimulationRun(
        [done(0, 60, 60), done(0, None, 600)], [ClusterSample(60 * time, 2, 2, 2, 0) for time in range(11)]
    )
    assert measure_run(run).utilisation == pytest.approx(660 / 1200)


def test_each_capacity_counts_for_as_long_as_it_lasted() -> None:
    """A node that fails just before the end, or while no job is there, changes the use by that time only."""
    last_second = [ClusterSample(0, 4, 4, 1, 0), ClusterSample(60, 2, 2, 1, 0)]
    assert measure_run(SimulationRun([done(0, 61, 242)], last_second)).utilisation == 1

    pause = [ClusterSample(0, 4, 4, 1, 0), ClusterSample(540, 2, 2, 1, 0)]
    jobs = [done(0, 60, 240), done(540, 600, 120)]
    assert measure_run(SimulationRun(jobs, pause)).utilisation == pytest.approx(360 / (540 * 4 + 60 * 2))


def test_makespan_of_a_complete_run() -> None:
    """The makespan ends with the last completion, not with the last decision."""
    run = SimulationRun([done(50, 100, 100)], [ClusterSample(60, 4, 2, 1, 0), ClusterSample(120, 4, 2, 1, 0)])
    assert (measure_run(run).makespan, measure_run(run).utilisation) == (50, 0.5)


def test_the_99th_percentile() -> None:
    """Of a hundred jobs, one may take longer than the 99th percentile."""
    found = measure_run(SimulationRun([done(0, finished) for finished in range(1, 101)], []))
    assert (found.jct_p50, found.jct_p99) == (50, 99)


def test_no_jobs() -> None:
    """An empty run has no times and is not an error."""
    found = measure_run(SimulationRun([], []))
    assert math.isnan(found.jct_mean)
    assert found.unfinished == 0
