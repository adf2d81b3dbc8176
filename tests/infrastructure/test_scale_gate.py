"""The gate of `make bench-scale`."""

import pytest

from tests.benchmarks.scale.expected import find_faults, read_expected


def _names(faults: list[str]) -> list[str]:
    return [line.partition(":")[0] for line in faults]


def test_a_count_may_be_a_fifth_above_the_expected_one() -> None:
    """Counts around the expected ones pass. A larger one is reported by name, and so is one that is not
    expected at all."""
    expected = read_expected(100)
    for factor in (0.8, 1.0, 1.19):
        assert find_faults({name: count * factor for name, count in expected.items()}, 100) == []
    more = {**expected, "status writes": expected["status writes"] * 1.21, "surprises": 0.1}
    assert _names(find_faults(more, 100)) == ["status writes", "surprises"]


def test_jobs_that_do_not_train_do_not_pass() -> None:
    """Counts far below the expected ones are no success: nothing was measured, or they must be recorded
    anew."""
    expected = read_expected(100)
    assert _names(find_faults(dict.fromkeys(expected, 0.0), 100)) == [
        name for name, count in expected.items() if count > 0
    ]


def test_many_jobs_share_the_budget_of_progress() -> None:
    """A thousand jobs write progress half as often as a hundred, and are measured by that. The position in
    the data is stored as often."""
    few, many = read_expected(100), read_expected(1000)
    for name in ("status writes", "watch events of a waiter"):
        assert many[name] == pytest.approx(few[name] / 2, abs=0.001)
    for name in ("state writes", "kilobytes"):
        assert few[name] / 2 < many[name] < few[name]
    assert {"status writes", "watch events of a waiter"} <= set(_names(find_faults(few, 1000)))
