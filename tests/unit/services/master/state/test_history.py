"""The history of a job stays small and spread over its whole life."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.protocol.metrics import MAX_CHARTED, MAX_METRICS, MAX_NAME
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.statistics import (
    FIRST_INTERVAL,
    MAX_POINTS,
    History,
    HistorySample,
    extend_history,
)
from edl_workflows.services.master.state.views import history_sample, job_status
from tests.unit.services.master.test_restore import SETTINGS


@given(gaps=st.lists(st.floats(0.01, 1000.0), max_size=600))
def test_history_is_bounded_and_even(gaps: list[float]) -> None:
    """A history has at most `MAX_POINTS` points, in order, at least the interval apart, and keeps the first
    one, however the job is sampled."""
    history = History()
    for time in itertools.accumulate(gaps):
        history = extend_history(history, HistorySample(time, int(time), {}))

    times = [point.time for point in history.points]
    assert len(times) <= MAX_POINTS
    assert all(later - earlier >= FIRST_INTERVAL for earlier, later in itertools.pairwise(times))
    assert times[:1] == gaps[:1]


def test_a_long_job_is_covered_to_its_end() -> None:
    """After a week, the newest point is at most one interval old."""
    history = History()
    for second in range(0, 7 * 86_400, 10):
        history = extend_history(history, HistorySample(float(second), second, {"worker": 2}))

    assert history.points[0].time == 0.0
    assert 7 * 86_400 - history.points[-1].time <= history.interval + 10
    assert len(history.points) > MAX_POINTS // 2 - 1


def test_metrics_leave_a_status_small() -> None:
    """With the largest number of points and with the longest metric names and values, the history takes less
    than 64 KB."""
    names = [f"m{index:02}".ljust(MAX_NAME, "x") for index in range(MAX_METRICS)]
    state = JobState(SETTINGS)
    state.volatile.statistics.metric_steps = dict.fromkeys(names, (1, -1.23456789e-300))
    for second in range(0, 10_000, 10):
        state.history = extend_history(state.history, history_sample(state, float(second)))
    points = job_status(state, 10_000.0)["history"]

    assert 60 < len(points) <= MAX_POINTS
    assert {len(point["metrics"]) for point in points} == {MAX_CHARTED}
    assert len(json.dumps(points)) < 64 * 1024
