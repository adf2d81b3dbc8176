"""Signals in training processes."""

import ctypes
import signal

from edl_workflows.training.signals import put_handler_back

IGNORE = 1
"""SIG_IGN."""


def test_a_handler_that_a_library_has_covered_is_put_back() -> None:
    """If native code replaces Python's signal handler, as TensorFlow's groups do for SIGTERM, it is installed
    again."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(IGNORE))
        signal.raise_signal(signal.SIGTERM)
        assert told == []
        put_handler_back(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert told == [signal.SIGTERM]
