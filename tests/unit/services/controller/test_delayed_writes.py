"""Writes that wait for more of their kind."""

from edl_workflows.services.controller.delayed_writes import DelayedWrites


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_wait_begins_once_and_ends() -> None:
    """Later calls do not prolong a wait. When it is over, the next call starts a new one."""
    clock = Clock()
    holds = DelayedWrites(clock)
    assert holds.left("a", 1.0) == 1.0
    clock.now += 0.75
    assert holds.left("a", 1.0) == 0.25
    clock.now += 0.25
    assert holds.left("a", 1.0) == 0.0
    assert holds.left("a", 1.0) == 1.0


def test_a_more_urgent_call_shortens_it() -> None:
    """A write that may wait 30 s is sent within 1 s if a later call allows only 1 s."""
    clock = Clock()
    holds = DelayedWrites(clock)
    assert holds.left("a", 30.0) == 30.0
    clock.now += 5.0
    assert holds.left("a", 1.0) == 1.0
    assert holds.left("b", 30.0) == 30.0


def test_what_can_not_wait_ends_it() -> None:
    """A write that may not be delayed includes the delayed one, so that the next delay starts again."""
    clock = Clock()
    holds = DelayedWrites(clock)
    holds.left("a", 30.0)
    assert holds.left("a", 0.0) == 0.0
    assert holds.left("a", 30.0) == 30.0
