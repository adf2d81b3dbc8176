"""The account of a job's time: what of it lasts, and the cause of each other second."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause, whole_seconds
from edl_workflows.services.master.state.goodput import (
    Goodput,
    Moments,
    TrainingMoment,
    count_time,
    cut_save,
)

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
    return _goes_on(Goodput(), None, moments)[0]


def _goes_on(
    goodput: Goodput, remembered: Moments | None, moments: Sequence[Moment]
) -> tuple[Goodput, Moments | None]:
    for now, seen in moments:
        goodput, remembered = count_time(goodput, remembered, seen, now)
    return goodput, remembered


def _start(cause: TimeCause, version: int = 0, step: int = 0) -> TrainingMoment:
    return TrainingMoment(version, step, stepped=False, cause=cause)


PENDING = [(100.0, _start(TimeCause.QUEUED)), (119.0, _start(TimeCause.IMPORT, 1))]
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
                (190, replace(_start(TimeCause.RESTORE, 2, 21), saved=(21,))),
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
                (190, _start(TimeCause.RENDEZVOUS, 2)),
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
                (181, TrainingMoment(1, 61, stepped=True, cause=TimeCause.SUSPENDED)),
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
    """The time between steps that are kept counts as useful, the rest of the job's time does not."""
    goodput = _after(moments)
    end = moments[-1][0]
    assert goodput.useful == pytest.approx(useful, abs=1.0)
    assert goodput.redone == pytest.approx(redone, abs=1.0)
    assert goodput.elapsed(end) == pytest.approx(elapsed)
    assert goodput.ratio(end) == pytest.approx(useful / elapsed, abs=0.02)


def test_a_suspension_lasts_over_a_change_of_versions() -> None:
    """A suspended job whose cluster version changes stays suspended: its time does not pass."""
    goodput = _after(
        [
            *PENDING,
            *_training(120, 60, 1, 1),
            (181, TrainingMoment(1, 61, stepped=True, cause=TimeCause.SUSPENDED)),
            (300, _start(TimeCause.SUSPENDED, 2, 61)),
        ]
    )
    assert goodput.elapsed(500) == pytest.approx(81)
    assert goodput.parts(500)[TimeCause.SUSPENDED] == pytest.approx(319)


def test_a_clock_that_is_set_counts_nothing() -> None:
    """If the clock is set forward by a year, that year counts neither as useful nor as elapsed time."""
    year = 31_536_000.0
    before, remembered = _goes_on(Goodput(), None, [*PENDING, *_training(120, 60, 1, 1)])
    goodput, _ = _goes_on(before.shift_times(year), remembered, _training(181 + year, 19, 1, 62))
    assert goodput.useful == pytest.approx(80)
    assert goodput.elapsed(200 + year) == pytest.approx(100)


def _causes(moments: Sequence[Moment]) -> dict[str, int]:
    return whole_seconds(_after(moments).parts(moments[-1][0]))


@pytest.mark.parametrize(
    ("moments", "spent"),
    [
        (
            [
                (100, replace(_start(TimeCause.QUEUED), created=70.0)),
                (110, _start(TimeCause.IMPORT)),
                (113, _start(TimeCause.RENDEZVOUS)),
                (114, _start(TimeCause.RESTORE, 1)),
                *_training(120, 60, 1, 1),
            ],
            {"training": 60, "queued": 40, "import": 3, "rendezvous": 1, "restore": 6},
        ),
        (
            [*PENDING, *_training(120, 60, 1, 1), (210, TrainingMoment(1, 61, True, TimeCause.HANG))],
            {"training": 60, "queued": 19, "import": 1, "hang": 30},
        ),
        (
            [
                *PENDING,
                *_training(120, 60, 1, 1),
                (183, TrainingMoment(1, 61, True, TimeCause.SAVE)),
                (190, _start(TimeCause.RESTORE, 2, 61)),
                *_training(195, 5, 2, 62),
            ],
            {"training": 65, "queued": 19, "import": 1, "save": 10, "restore": 5},
        ),
        (
            [
                *PENDING,
                *_training(120, 60, 1, 1),
                (182, TrainingMoment(1, 61, True, TimeCause.SUSPENDED)),
                (500, _start(TimeCause.QUEUED, 1, 61)),
                (504, _start(TimeCause.IMPORT, 1, 61)),
            ],
            {"training": 60, "queued": 23, "import": 1, "suspended": 318, "other": 2},
        ),
        (
            [
                *PENDING,
                *_training(120, 60, 1, 1),
                (182, TrainingMoment(1, 61, True, TimeCause.QUEUED)),
                (190, TrainingMoment(1, 61, True, TimeCause.TRAINING)),
                *_training(195, 5, 1, 62),
            ],
            {"training": 65, "queued": 29, "import": 6},
        ),
        (
            [
                (100, replace(_start(TimeCause.TRAINING), connected=False)),
                (104, _start(TimeCause.IMPORT)),
                *_training(110, 10, 1, 1),
            ],
            {"training": 10, "import": 10},
        ),
        (
            [
                (100, replace(_start(TimeCause.TRAINING), connected=False)),
                (150, replace(_start(TimeCause.TRAINING), connected=False, over=True)),
            ],
            {"training": 50},
        ),
        (
            [
                (100, replace(_start(TimeCause.TRAINING), connected=False, worked=False)),
                (150, replace(_start(TimeCause.TRAINING), connected=False, worked=False, over=True)),
            ],
            {"import": 50},
        ),
        (
            [
                (100, replace(_start(TimeCause.TRAINING), connected=False, worked=False)),
                (120, replace(_start(TimeCause.QUEUED), connected=False, worked=False)),
                (130, replace(_start(TimeCause.IMPORT), worked=False)),
                *_training(140, 10, 1, 1),
            ],
            {"training": 10, "queued": 10, "import": 30},
        ),
        (
            [
                (100, replace(_start(TimeCause.TRAINING), connected=False, worked=False)),
                (130, replace(_start(TimeCause.TRAINING), connected=False, worked=False)),
                (150, TrainingMoment(1, 4, True, connected=False)),
                (160, TrainingMoment(1, 8, True, connected=False)),
            ],
            {"training": 10, "import": 50},
        ),
    ],
    ids=[
        "the causes of a start, from the job's creation on",
        "a hang began when the last step was made",
        "a switch saves, and restores",
        "a suspended job",
        "a lone worker starts again until its next step",
        "a program that connects was starting before",
        "an unmodified program trains as long as its processes run",
        "unless it ends without a sign that it trained",
        "attempts before a program connects were starts",
        "a program whose first report is a step was starting before",
    ],
)
def test_each_second_has_a_cause(moments: list[Moment], spent: dict[str, int]) -> None:
    """Each second is counted under the cause that the job's state showed. A stop of training begins at the
    last step."""
    assert _causes(moments) == spent


def test_the_time_without_a_master_is_training_if_steps_were_made() -> None:
    """A new master counts the time since the last stored step as its own absence, until the next step tells
    how many were made meanwhile.
    """
    before = _after([*PENDING, *_training(120, 60, 1, 1)])
    taken_over, remembered = count_time(before, None, TrainingMoment(1, 61, stepped=True), 200)
    assert whole_seconds(taken_over.parts(200))["masterDown"] == 20
    went_on, _ = count_time(taken_over, remembered, TrainingMoment(1, 77, stepped=True), 201)
    assert whole_seconds(went_on.parts(201)) == {"training": 76, "queued": 19, "import": 1, "masterDown": 5}


def test_a_job_that_waits_does_so_without_a_master_too() -> None:
    """While the master is absent, the time counts under the cause that applied before."""
    before = _after([(100.0, _start(TimeCause.QUEUED)), (101.0, _start(TimeCause.QUEUED))])
    after, _ = count_time(before, None, _start(TimeCause.IMPORT), 160)
    assert whole_seconds(after.parts(160)) == {"queued": 60}


def test_a_save_is_cut_out_of_the_training() -> None:
    """The duration of a save is moved from training to saving, including the part that was counted as a step
    before the process reported the save."""
    account, remembered = _goes_on(Goodput(), None, [*PENDING, *_training(120, 60, 1, 1)])
    account, _ = _goes_on(cut_save(account, 3.0, 182), remembered, _training(183, 7, 1, 62))
    assert whole_seconds(account.parts(190)) == {"training": 67, "queued": 19, "import": 1, "save": 3}


def test_an_account_of_an_earlier_version_is_continued() -> None:
    """Time whose cause an earlier version did not record counts as `other`; a suspension continues."""
    old = Goodput(began=100.0, useful=60.0, redone=5.0, version=1, step=61, at=190.0, first=1)
    training, _ = count_time(old, None, TrainingMoment(1, 61, stepped=True), 200)
    assert whole_seconds(training.parts(200)) == {"training": 60, "redone": 5, "other": 35}

    suspended = replace(old, suspended=190.0, at=0.0)
    resumed, _ = count_time(suspended, None, _start(TimeCause.QUEUED, 1, 61), 300)
    assert whole_seconds(resumed.parts(300)) == {"training": 60, "redone": 5, "suspended": 110, "other": 25}


MOVES = st.lists(
    st.tuples(
        st.floats(0, 100),
        st.integers(0, 1),
        st.integers(0, 50),
        st.sampled_from(["", "goes back", "saves", "stops to save", "another master", "clock is set"]),
        st.sampled_from([cause for cause in TimeCause if cause is not TimeCause.REDONE]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=60,
)


@given(MOVES, st.floats(0, 100), st.booleans())
def test_the_parts_are_the_whole_time(
    moves: list[tuple[float, int, int, str, TimeCause, bool, bool]], age: float, ends: bool
) -> None:
    """Whatever happens (versions, steps, saves, suspensions, clock jumps, new masters), no part is negative,
    and the parts add up to the time since the job was created."""
    account, remembered = Goodput(), None
    now, version, step = 1000.0, 0, 0
    created, jumps = now - age, 0.0
    saved: tuple[int, ...] = (0,)
    for seconds, newer, steps, what, cause, connected, worked in moves:
        now += seconds
        version += newer
        step = saved[-1] if newer and what == "goes back" else step + steps
        saved = (*saved, step)[-3:] if what == "saves" else saved
        if what == "another master":
            stored = TypeAdapter(Goodput).dump_json(account, exclude_defaults=True)
            account, remembered = TypeAdapter(Goodput).validate_json(stored), None
        elif what == "stops to save":
            account = cut_save(account, seconds, now)
        elif what == "clock is set" and account.began:
            account, now, jumps = account.shift_times(500.0), now + 500.0, jumps + 500.0
        seen = TrainingMoment(
            version,
            step,
            stepped=steps > 0,
            cause=cause,
            saved=saved,
            connected=connected,
            worked=worked,
            created=created,
        )
        account, remembered = count_time(account, remembered, seen, now)
        for later in (now, now + 7.0):
            parts = account.parts(later)
            assert all(part >= 0 for part in parts.values()), parts
            assert sum(parts.values()) == pytest.approx(later - created - jumps, abs=1e-4)
            away = parts.get(TimeCause.SUSPENDED, 0.0)
            assert account.elapsed(later) == pytest.approx(sum(parts.values()) - away, abs=1e-4)
            assert 0 <= account.ratio(later) <= 1
            assert sum(whole_seconds(parts).values()) == round(sum(parts.values()))
    if moves and ends:
        account, _ = count_time(account, remembered, replace(seen, over=True), now)
        assert account.parts(now + 100) == pytest.approx(account.parts(now))
