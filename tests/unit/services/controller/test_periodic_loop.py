"""The loop of the planners: when it calls its function."""

import queue
import threading
from collections.abc import Iterator

import pytest

from edl_workflows.services.controller.periodic_loop import PeriodicLoop

SECONDS = 60.0
"""Until a call that must come; far below an hour, the period."""


class Looks:
    """A function for the loop, which waits in each call until it is let go on."""

    def __init__(self) -> None:
        self.calls: queue.Queue[bool] = queue.Queue()
        self.go_on = threading.Semaphore(0)

    def __call__(self, everything: bool, /) -> float | None:
        self.calls.put(everything)
        assert self.go_on.acquire(timeout=SECONDS)
        return 3600.0


@pytest.fixture
def looks() -> Looks:
    """The function of the loop."""
    return Looks()


@pytest.fixture
def loop(looks: Looks) -> Iterator[PeriodicLoop]:
    """A running loop whose first call has begun."""
    loop = PeriodicLoop("test", looks, lambda _: True, 3600.0)
    loop.start()
    assert looks.calls.get(timeout=SECONDS)
    yield loop
    looks.go_on.release()
    loop.stop(SECONDS)


def test_a_request_during_a_call_is_followed_by_another_call(loop: PeriodicLoop, looks: Looks) -> None:
    """What changed during a call may have come too late for it."""
    loop.ask_within(0)
    looks.go_on.release()
    assert looks.calls.get(timeout=SECONDS)


def test_a_request_for_what_is_new_leaves_the_other_one_standing(loop: PeriodicLoop, looks: Looks) -> None:
    """A call for new jobs only does not stand for one for everything."""
    loop.ask_within(2)
    loop.ask(everything=False)
    looks.go_on.release()
    first = looks.calls.get(timeout=SECONDS)
    looks.go_on.release()
    assert first or looks.calls.get(timeout=SECONDS)


def test_many_requests_are_one_call(loop: PeriodicLoop, looks: Looks) -> None:
    """Pods that leave together are planned for together."""
    for _ in range(100):
        loop.ask_within(0)
    looks.go_on.release()
    assert looks.calls.get(timeout=SECONDS)
    looks.go_on.release()
    loop.ask(everything=False)
    assert not looks.calls.get(timeout=SECONDS), "nothing was left of the hundred"
