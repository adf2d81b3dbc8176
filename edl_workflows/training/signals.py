"""Handles signals in a thread, since a Python signal handler must not take locks that the main thread may
hold."""

import ctypes
import faulthandler
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable

DUMP_STACKS = signal.SIGUSR2
"""Makes a training process that called `dump_stacks_on_signal` write its stacks. The launcher makes training
processes ignore the signal by default, so that it does not kill other programs."""
_PR_SET_PDEATHSIG = 1
_STDERR = 2


def call_on_signals(numbers: Iterable[signal.Signals], callback: Callable[[], None]) -> None:
    """Call `callback` in a separate thread whenever one of the signals arrives. Call this in the main
    thread."""
    came: queue.SimpleQueue[None] = (
        queue.SimpleQueue()
    )  # the only queue whose put is safe in a signal handler

    def relay() -> None:
        while True:
            came.get()
            callback()

    threading.Thread(target=relay, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda *_: came.put(None))


def put_handler_back(number: signal.Signals) -> None:
    """Reinstall Python's handler of a signal, in case a library replaced it without Python's knowledge.

    Does nothing outside the main thread, where handlers can't be installed.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.getsignal(number))


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent exits. Linux only; a no-op elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def dump_stacks_on_signal() -> None:
    """Make `DUMP_STACKS` write the stacks of all threads to stderr, even if the main thread hangs in native
    code."""
    faulthandler.register(DUMP_STACKS, file=_STDERR, all_threads=True, chain=False)
