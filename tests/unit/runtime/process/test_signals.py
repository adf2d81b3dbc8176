"""Delaying SIGALRM: `edl_workflows.runtime.process.signals.alarm_waits`."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from edl_workflows.runtime.process.signals import alarm_waits


@pytest.fixture
def out_of_time() -> Iterator[None]:
    """A handler of SIGALRM that raises TimeoutError."""

    def strike(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.signal(signal.SIGALRM, before)


def test_an_alarm_waits_for_the_end_of_the_block(out_of_time: None) -> None:
    """The block is completed; then the handler runs and is installed again."""
    done = []

    def work() -> None:
        with alarm_waits():
            signal.raise_signal(signal.SIGALRM)
            done.append("all of it")

    with pytest.raises(TimeoutError):
        work()
    assert done == ["all of it"]
    with pytest.raises(TimeoutError):
        signal.raise_signal(signal.SIGALRM)


def test_without_an_alarm_nothing_happens(out_of_time: None) -> None:
    """An error in the block is not changed."""
    with pytest.raises(KeyError), alarm_waits():
        raise KeyError


def test_other_threads_are_let_through() -> None:
    """Only the main thread gets signals and may set handlers, so in other threads the function does
    nothing."""
    done = threading.Event()

    def work() -> None:
        with alarm_waits():
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done.is_set()
