"""The gate of `make bench-scale`."""

from tests.benchmarks.scale.expected import find_excesses, read_expected


def test_a_count_may_be_a_fifth_above_the_expected_one() -> None:
    """Counts below and a little above the expected ones pass. A larger one is reported by name, and so is one
    that is not expected at all."""
    expected = read_expected()
    assert find_excesses(expected) == []
    assert find_excesses({name: count * 1.19 for name, count in expected.items()}) == []
    more = {**expected, "status writes": expected["status writes"] * 1.21, "surprises": 0.1}
    assert [line.partition(":")[0] for line in find_excesses(more)] == ["status writes", "surprises"]
