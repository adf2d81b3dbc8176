"""The pauses between attempts."""

from edl_workflows.core.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    """The first pause is as given, each further one is twice as long, and none exceeds the limit, however
    often an attempt failed."""
    backoff = Backoff(first=10, most=300)

    assert [backoff.delay(failures) for failures in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.delay(10**9) == 300
