"""Goodput: what of a job's time lasts."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.master.state.goodput import Goodput, GoodputMeter, TrainingMoment

Moment = tuple[float, TrainingMoment]


def _training(
    start: float, seconds: int, version: int, first: int, saved: Sequence[int] = ()
) -> list[Moment]:
    """A step each second."""
    return [
        (start + second, TrainingMoment(version, first + second, stepped=True, saved=tuple(saved)))
        for second in range(seconds + 1)
    ]


def _after(moments: Sequence[Moment]) -> Goodput:
    return _goes_on(GoodputMeter(), Goodput(), moments)


def _goes_on(meter: GoodputMeter, goodput: Goodput, moments: Sequence[Moment]) -> Goodput:
    for now, seen in moments:
        goodput = meter.count(goodput, seen, now)
    return goodput


PENDING = [(100.0, TrainingMoment(0, 0, stepped=False)), (119.0, TrainingMoment(1, 0, stepped=False))]
"""Twenty seconds from the job's beginning to its first step."""


@pytest.mark.parametrize(
    ("moments", "useful", "redone", "elapsed"),
    [
        ([*PENDING, *_training(120, 60, 1, 1)], 60, 0, 80),
        ([*PENDING, *_training(120, 60, 1, 1), *_training(190, 30, 2, 61, [61])], 90, 0, 120),
        (
            [
                *PENDING,
                *_training(120, 20, 1, 1),
                *_training(141, 40, 1, 22, [21]),
                (190, TrainingMoment(2, 21, stepped=False, saved=(21,))),
                *_training(200, 10, 2, 22, [21]),
            ],
            30,
            41,
            110,
        ),
        (
            [
                *PENDING,
                *_training(120, 60, 1, 1),
                (190, TrainingMoment(2, 0, stepped=False)),
                *_training(200, 10, 2, 1),
            ],
            10,
            60,
            110,
        ),
        ([*PENDING, *_training(120, 60, 1, 1), *_training(240, 60, 1, 62)], 120, 0, 200),
        (
            [
                *PENDING,
                *_training(120, 60, 1, 1),
                (181, TrainingMoment(1, 61, stepped=True, over=True)),
                (500, TrainingMoment(1, 61, stepped=True, over=True)),
            ],
            60,
            0,
            81,
        ),
        (
            [
                *PENDING,
                *_training(120, 60, 1, 1),
                (181, TrainingMoment(1, 61, stepped=True, suspended=True)),
                (500, TrainingMoment(1, 61, stepped=True)),
                *_training(501, 9, 2, 62, [61]),
            ],
            69,
            0,
            91,
        ),
    ],
    ids=[
        "start-up is not useful",
        "a switch is not",
        "steps that are lost are redone",
        "all is lost without a checkpoint",
        "nor is a pause within a version",
        "the job's end ends its time",
        "a suspension is no time of the job",
    ],
)
def test_how_time_is_counted(moments: list[Moment], useful: float, redone: float, elapsed: float) -> None:
    """Useful is the time between steps that last; the rest of the job's time is not."""
    goodput = _after(moments)
    end = moments[-1][0]
    assert goodput.useful == pytest.approx(useful, abs=1.0)
    assert goodput.redone == pytest.approx(redone, abs=1.0)
    assert goodput.elapsed(end) == pytest.approx(elapsed)
    assert goodput.ratio(end) == pytest.approx(useful / elapsed, abs=0.02)


def test_a_clock_that_is_set_counts_nothing() -> None:
    """A year's jump is neither useful nor elapsed."""
    meter = GoodputMeter()
    year = 31_536_000.0
    before = _goes_on(meter, Goodput(), [*PENDING, *_training(120, 60, 1, 1)])
    goodput = _goes_on(meter, before.shift_times(year), _training(181 + year, 19, 1, 62))
    assert goodput.useful == pytest.approx(80)
    assert goodput.elapsed(200 + year) == pytest.approx(100)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.integers(0, 1),
            st.integers(0, 50),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_useful_and_redone_time_fit_into_the_job(
    moves: list[tuple[float, int, int, bool, bool, bool]],
) -> None:
    """Whatever versions, steps, saves and suspensions come: nothing is negative, and no more is useful than
    there was.
    """
    meter, goodput = GoodputMeter(), Goodput()
    now, version, step = 50.0, 0, 0
    saved: tuple[int, ...] = (0,)
    for seconds, newer, steps, goes_back, saves, suspended in moves:
        now += seconds
        version += newer
        step = saved[-1] if newer and goes_back else step + steps
        saved = (*saved, step)[-3:] if saves else saved
        seen = TrainingMoment(version, step, stepped=steps > 0, saved=saved, suspended=suspended)
        goodput = meter.count(goodput, seen, now)
        assert goodput.useful >= 0
        assert goodput.redone >= 0
        assert goodput.useful + goodput.redone <= goodput.elapsed(now) + 1e-6
        assert 0 <= goodput.ratio(now) <= 1
