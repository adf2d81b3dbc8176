"""Converts SIGTERM and SIGINT to an event, and delays SIGALRM."""

import contextlib
import signal
import threading
from collections.abc import Iterator


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set. A second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop


@contextlib.contextmanager
def alarm_waits() -> Iterator[None]:
    """Delay SIGALRM, which usually is a timeout, until the end of a block that must not be interrupted.

    In threads other than the main one this does nothing, since only the main thread runs signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    delayed_alarms: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, _: delayed_alarms.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        if delayed_alarms and callable(handler):
            handler(signal.SIGALRM, None)
