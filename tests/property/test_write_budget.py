"""Laws of the period in which many writers write within one budget."""

from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.write_budget import PROGRESS_SECONDS, WRITES_PER_SECOND, choose_period

WRITERS = st.integers(0, 100_000)
BUDGETS = st.floats(0.1, 1_000)
PERIODS = st.integers(1, 100_000)


@given(WRITERS, BUDGETS, PERIODS)
def test_all_writers_stay_within_the_budget(writers: int, budget: float, present: int) -> None:
    """Whatever the period was before, all writers together stay within the budget, none writes more often
    than once in 60 s, and the period is 60 s, doubled some number of times."""
    period = choose_period(writers, budget, present)

    assert writers / period <= budget
    doublings, rest = divmod(period, PROGRESS_SECONDS)
    assert rest == 0
    assert doublings.bit_count() == 1


@given(WRITERS, WRITERS, BUDGETS, PERIODS)
def test_more_writers_never_write_more_often(few: int, more: int, budget: float, present: int) -> None:
    """The period grows with the number of writers."""
    assert choose_period(few, budget, present) <= choose_period(few + more, budget, present)


@given(WRITERS, BUDGETS, PERIODS)
def test_the_same_number_asks_for_no_other_period(writers: int, budget: float, present: int) -> None:
    """A second choice with the same number changes nothing."""
    period = choose_period(writers, budget, present)

    assert choose_period(writers, budget, period) == period


@given(st.integers(0, 100_000), st.lists(st.floats(0, 1), min_size=2, max_size=30), BUDGETS, PERIODS)
def test_the_period_does_not_change_to_and_fro(
    most: int, parts: list[float], budget: float, present: int
) -> None:
    """While the number stays between some number and three quarters of it, the period is only lengthened or
    only shortened, however the number changes."""
    least = most - most // 4
    periods = [present]
    for part in parts:
        periods.append(choose_period(least + round((most - least) * part), budget, periods[-1]))
    chosen = periods[1:]

    assert chosen == sorted(chosen) or chosen == sorted(chosen, reverse=True)


@given(WRITERS, BUDGETS, PERIODS)
def test_a_period_is_not_much_longer_than_the_budget_asks_for(
    writers: int, budget: float, present: int
) -> None:
    """The writers use at least three eighths of the budget, unless they write once in 60 s anyway."""
    period = choose_period(writers, budget, present)

    assert period == PROGRESS_SECONDS or writers / period > 0.374 * budget


def test_by_default_six_hundred_jobs_write_once_a_minute() -> None:
    """The documented figures: up to 600 jobs write each minute, 1,000 every two, 10,000 every 32 minutes."""
    counts = (0, 1, 600, 601, 1_000, 1_200, 1_201, 10_000)

    periods = [choose_period(count, WRITES_PER_SECOND) for count in counts]

    assert periods == [60, 60, 60, 120, 120, 120, 240, 1920]
