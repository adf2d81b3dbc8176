"""The history of a job stays small and spread over its whole life."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.protocol.metrics import MAX_CHARTED, MAX_METRICS, MAX_NAME
from edl_workflows.services.master.state.history import (
    FIRST_INTERVAL,
    MAX_POINTS,
    SHOWN_BYTES,
    SHOWN_POINTS,
    STORED_BYTES,
    History,
    HistorySample,
    extend_history,
)
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.job_result import TrainingResult
from edl_workflows.services.master.state.stored_state import StoredState
from edl_workflows.services.master.state.views import history_sample, job_status, status_report
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


def _job_with_metrics(names: Sequence[str], value: float) -> JobState:
    state = JobState(SETTINGS)
    state.volatile.statistics.metric_steps = dict.fromkeys(names, (1, value))
    for second in range(0, 10_000, 10):
        state.history = extend_history(state.history, history_sample(state, float(second)))
    return state


LONGEST = [f"m{index:02}".ljust(MAX_NAME, "x") for index in range(MAX_METRICS)]


def test_metrics_leave_a_status_small() -> None:
    """With the largest number of points and with the longest metric names and values, the history of a job
    that has ended takes less than 64 KB."""
    state = _job_with_metrics(LONGEST, -1.23456789e-300)
    state.outcome = TrainingResult(True, "Completed")
    points = job_status(state, 10_000.0)["history"]

    assert 60 < len(points) <= MAX_POINTS
    assert {len(point["metrics"]) for point in points} == {MAX_CHARTED}
    assert len(json.dumps(points)) < 64 * 1024


@pytest.mark.parametrize(("names", "fewest"), [((), 10), (("loss", "accuracy"), 8), (LONGEST, 8)])
def test_a_running_job_shows_a_sample(names: Sequence[str], fewest: int) -> None:
    """While a job runs, its status has at most 20 points of at most 2,000 bytes with the first and the
    newest one, and its master serves all of them: each write of the status costs the whole of it."""
    state = _job_with_metrics(names, -1.23456789e-300)
    shown, served = (view(state, 10_000.0)["history"] for view in (job_status, status_report))

    assert fewest <= len(shown) <= SHOWN_POINTS
    assert len(json.dumps(shown)) <= SHOWN_BYTES
    assert len(served) == len(state.history.points) > 60
    assert [shown[0]["time"], shown[-1]["time"]] == [served[0]["time"], served[-1]["time"]]


@pytest.mark.parametrize("names", [(), ("loss", "accuracy"), LONGEST])
def test_the_next_master_goes_on_from_a_kilobyte(names: Sequence[str]) -> None:
    """What is stored of the history is bounded, and the next master continues it at the same pace, from the
    job's beginning."""
    state = _job_with_metrics(names, -1.23456789e-300)
    document = state.to_json()
    restored = JobState(SETTINGS, StoredState.from_json(document))
    ends = [state.history.points[index] for index in (0, -1)]

    assert len(json.dumps(json.loads(document)["history"]["points"])) <= STORED_BYTES
    assert restored.history.interval == state.history.interval
    assert [(p.time, p.step) for p in (restored.history.points[0], restored.history.points[-1])] == [
        (p.time, p.step) for p in ends
    ]
    assert json.loads(restored.to_json()) == json.loads(document), "what was selected is selected again"
