"""How the mini-batches of a global batch are divided among workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.data.sampler import mini_batch_counts


@pytest.mark.parametrize(
    ("most", "workers", "each"),
    [(8, 8, (1,) * 8), (8, 3, (3, 3, 2)), (8, 5, (2, 2, 2, 1, 1)), (8, 1, (8,)), (1, 1, (1,))],
)
def test_mini_batches_share_a_batch(most: int, workers: int, each: tuple[int, ...]) -> None:
    """Of N mini-batches and N0 workers, the first N mod N0 workers compute one more."""
    assert mini_batch_counts(most, workers) == each


@given(st.integers(1, 300).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most))))
def test_the_batch_is_always_the_same(counts: tuple[int, int]) -> None:
    """All members together train the global batch in each step. Their shares differ by at most one
    mini-batch, and none is 0."""
    each = mini_batch_counts(*counts)
    assert (len(each), sum(each)) == (counts[1], counts[0])
    assert 1 <= min(each) <= max(each) <= min(each) + 1
    assert sorted(each, reverse=True) == list(each)


@pytest.mark.parametrize(("most", "workers"), [(4, 5), (4, 0), (0, 0), (4, -1)])
def test_nobody_computes_nothing(most: int, workers: int) -> None:
    """More workers than mini-batches are rejected, and so are no workers."""
    with pytest.raises(InvalidError, match="can't share a batch"):
        mini_batch_counts(most, workers)
