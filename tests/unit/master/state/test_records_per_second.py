"""How fast a job trains its records, as its master measures it from what nodes acknowledge."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.master.state.statistics import WINDOW, Statistics

SECONDS = st.lists(st.integers(0, 500), min_size=1, max_size=80)
"""Records that each second of training adds."""


def _train(statistics: Statistics, gains: list[int], records: int = 0, now: float = 1_000.0) -> float:
    """Takes the position of each second; returns the time of the last."""
    statistics.take_records(records, now)
    for second, done in enumerate(itertools.accumulate(gains, initial=records)):
        statistics.take_records(done, now + second)
    return now + len(gains)


def test_the_start_up_of_a_job_is_not_training_time() -> None:
    """A program that imports its libraries for 40 seconds and then trains 100 records a second trains at that
    speed from the first seconds on."""
    for seconds in (2, 5, 30):
        statistics = Statistics()
        _train(statistics, [0] * 40 + [100] * seconds)
        assert statistics.records_per_second == 100.0


def test_records_that_come_in_shards_are_not_faster_than_they_are() -> None:
    """A shard that was trained for 20 seconds is acknowledged at once. The first one shows no speed, because
    nothing says when it was begun; the others show the true speed or less, down to half of it."""
    statistics = Statistics()
    gains = ([0] * 19 + [1000]) * 6
    seen = []
    for second, done in enumerate(itertools.accumulate(gains)):
        statistics.take_records(done, 1_000.0 + second)
        seen.append(statistics.records_per_second)
    assert set(seen[:39]) == {0.0}
    assert [seen[39], seen[59], seen[119]] == pytest.approx([50.0] * 3)
    assert all(25.0 < speed < 50.1 for speed in seen[39:])


def test_shards_that_take_longer_than_the_window() -> None:
    """A shard is acknowledged every 90 seconds: its speed is shown when it is."""
    statistics = Statistics()
    _train(statistics, ([0] * 89 + [900]) * 3)
    assert statistics.records_per_second == pytest.approx(10.0)


@pytest.mark.parametrize("pause", [100, 10_000])
def test_a_job_that_goes_on_after_a_pause_has_its_speed_at_once(pause: int) -> None:
    """A pause of which nothing is left in the window, as of a suspended job, does not slow what follows."""
    statistics = Statistics()
    _train(statistics, [100] * 70 + [0] * pause + [100] * 3)
    assert statistics.records_per_second == 100.0


def test_another_version_is_measured_anew() -> None:
    """The time in which the processes of the next version start is not training time, whether the position
    went back or not."""
    for position in (3_000, 1_000):
        statistics = Statistics()
        end = _train(statistics, [100] * 30)
        statistics.restart()
        _train(statistics, [0] * 20 + [100] * 3, position, end + 1)
        assert statistics.records_per_second == 100.0


def test_a_position_that_went_back_has_no_speed() -> None:
    """The speed is 0 until training gets on again, and then that of the training."""
    statistics = Statistics()
    end = _train(statistics, [100] * 30)
    assert statistics.records_per_second == 100.0
    statistics.take_records(500, end + 1)
    assert statistics.records_per_second == 0.0
    _train(statistics, [0, 0, 50, 50], 500, end + 2)
    assert statistics.records_per_second == 50.0


@given(gains=SECONDS)
def test_a_stall_ends_in_a_speed_of_nought(gains: list[int]) -> None:
    """While nothing is acknowledged the speed only falls, and after a window without progress it is 0."""
    statistics = Statistics()
    end = _train(statistics, gains)
    before = statistics.records_per_second
    for second in range(int(WINDOW) + 1):
        statistics.take_records(sum(gains), end + second)
        assert 0.0 <= statistics.records_per_second <= before + 1e-9
        before = statistics.records_per_second
    assert before == 0.0


@given(start=st.integers(0, 200), gains=SECONDS)
def test_the_speed_does_not_depend_on_what_was_before_the_first_record(start: int, gains: list[int]) -> None:
    """However long a job took to start, its speed is the same, and not above that of its best second."""
    late, early = Statistics(), Statistics()
    _train(late, [0] * start + gains)
    _train(early, gains)
    assert late.records_per_second == pytest.approx(early.records_per_second)
    assert early.records_per_second <= max(gains) * 1.001
