"""The gate of `make bench-scale`."""

from tests.benchmarks.scale.expected import find_excesses, read_expected


def test_a_count_may_be_a_fifth_above_the_expected_one() -> None:
    """Counts below and a little above the expected ones pass. A larger one is reported by name, and so is one
    that is not expected at all."""
    expected = read_expected(100)
    assert find_excesses(expected, 100) == []
    assert find_excesses({name: count * 1.19 for name, count in expected.items()}, 100) == []
    more = {**expected, "status writes": expected["status writes"] * 1.21, "surprises": 0.1}
    assert [line.partition(":")[0] for line in find_excesses(more, 100)] == ["status writes", "surprises"]


def test_many_jobs_share_the_budget_of_progress() -> None:
    """A thousand jobs write progress half as often as a hundred, and are measured by that."""
    few, many = read_expected(100), read_expected(1000)
    assert many == few | {name: few[name] / 2 for name in ("status writes", "watch events of a waiter")}
    assert find_excesses(few, 1000) != []
