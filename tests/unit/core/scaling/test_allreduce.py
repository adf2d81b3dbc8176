"""Batches of all-reduce jobs, and how many workers pay."""

from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from edl_workflows.core.scaling.dlrover.allreduce import AllreduceJob, WorkerDecision, decide_workers


def measured(workers: int, speeds: dict[int, float], **values: int | bool) -> AllreduceJob:
    """A job with three equal measurements at each count."""
    job = AllreduceJob(workers, 1, 16, 100, {count: [speed] * 3 for count, speed in speeds.items()})
    return replace(job, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "workers", "why"),
    [
        (measured(2, {2: 10}), 4, "2 workers scale well; 4 may too"),
        (measured(4, {2: 10, 4: 18}), 8, "scale well"),
        (
            measured(4, {2: 10, 4: 12}),
            2,
            "each worker beyond 2 brings 20% of what each brought before; 50% is the least",
        ),
        (measured(2, {2: 10, 4: 12}), 3, "2 workers scale well; 3 may too"),
        (measured(3, {2: 10, 3: 11, 4: 12}), 2, "beyond 2 brings 20%"),
        (measured(2, {2: 10, 3: 11, 4: 12}), 2, "2 workers pay, 3 don't"),
        (measured(2, {2: 10, 4: 19}), 4, "scale well"),
        (measured(2, {2: 10}, free=1), 3, "scale well"),
        (measured(2, {2: 10}, free=0), 2, "find no room"),
        (measured(2, {1: 5}), 2, "not known yet"),
        (measured(20, {}), 16, "1 to 16 workers in multiples of 1 are allowed"),
        (measured(2, {}, min_workers=4), 4, "4 to 16"),
        (measured(2, {}, min_workers=4, free=1), 2, "the cluster has room for 1 more"),
        (measured(6, {6: 10}, node_unit=4), 4, "multiples of 4"),
        (measured(4, {4: 10}, node_unit=4, free=7), 8, "scale well"),
        (measured(2, {2: 10}, max_workers=6, fixed_batch=True), 3, "scale well"),
        (measured(5, {5: 10}, max_workers=8, fixed_batch=True, free=2), 5, "would not shorten a step"),
        (measured(0, {}), 0, "no worker runs"),
        (measured(2, {}, min_workers=5, max_workers=4), 2, "the bounds are impossible"),
        (measured(2, {}, node_unit=0), 2, "the bounds are impossible"),
        (measured(2, {}, node_unit=9, max_workers=8), 2, "no multiple of 9"),
        (measured(2, {}, free=-1), 2, "room for -1 workers"),
        (measured(2, {2: float("nan")}), 2, "not known yet"),
        (measured(2, {2: -5.0, -3: 7.0, 0: 1.0}), 2, "not known yet"),
        (measured(2, {2: float("inf")}), 2, "not known yet"),
    ],
)  # fmt: skip
def test_decisions(job: AllreduceJob, workers: int, why: str) -> None:
    """Each row gives the number of workers and the reason: growth, shrinking, bounds, and invalid input."""
    decision = decide_workers(job)
    assert decision.workers == workers
    assert why in decision.reason


def test_an_impossible_gain_changes_nothing() -> None:
    """If the least gain is no number, nothing changes, and the decision says why."""
    assert decide_workers(measured(2, {2: 10}), float("nan")) == WorkerDecision(
        2, "the least gain is nan: 0 to 1 is possible"
    )


def amdahl(serial: float) -> Callable[[int], float]:
    """Speed by count, with a part that no worker shortens."""
    return lambda workers: 1 / (serial + (1 - serial) / workers)


@given(
    st.floats(0, 1),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(0, 40),
    st.integers(1, 4),
    st.booleans(),
)
@example(serial=0.0, start=3, low=1, spread=3, unit=2, fixed=False)
@settings(max_examples=150)
def test_decisions_come_to_rest(
    serial: float, start: int, low: int, spread: int, unit: int, fixed: bool
) -> None:
    """Whatever the scaling, the number of workers stops changing after a few decisions, within the bounds and
    the free capacity."""
    speed, workers = amdahl(serial), start
    room = max(start, 30)
    known: dict[int, list[float]] = {}
    for _ in range(30):
        known[workers] = [speed(workers)] * 3
        job = AllreduceJob(workers, low, low + spread, room - workers, dict(known), unit, fixed)
        decision = decide_workers(job)
        before, workers = workers, decision.workers
        assert workers <= room
        assert workers == start or low <= workers <= low + spread
        assert (
            decide_workers(replace(job, workers=workers, free=room - workers)).workers == workers
            or workers in known
        )
        if workers == before:
            break
    assert workers == before


def test_better_scaling_is_never_fewer_workers() -> None:
    """A job that scales better never gets fewer workers, from one worker up and with room for 64."""

    def rest(serial: float) -> int:
        workers, known = 1, {1: [1.0] * 3}
        while (after := decide_workers(AllreduceJob(workers, 1, 64, 64 - workers, known)).workers) != workers:
            workers = after
            known[workers] = [amdahl(serial)(workers)] * 3
        return workers

    found = [rest(serial) for serial in (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)]
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (64, 1)
