"""Signals as calls in a thread: a Python signal handler itself may not take locks, which the main thread may hold."""

import ctypes
import faulthandler
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable

DUMP_STACKS = signal.SIGUSR2
"""Makes a training process that has called `dump_stacks_on_signal` write its stacks. The launcher of training processes lets
them ignore it, so that one that never does so loses nothing."""
_PR_SET_PDEATHSIG = 1
_STDERR = 2


def call_on_signals(numbers: Iterable[signal.Signals], callback: Callable[[], None]) -> None:
    """Call `callback` in a thread of its own whenever one of the signals comes. Call this in the main thread."""
    came: queue.SimpleQueue[None] = queue.SimpleQueue()  # the one queue whose put is safe in a signal handler

    def relay() -> None:
        while True:
            came.get()
            callback()

    threading.Thread(target=relay, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda *_: came.put(None))


def put_handler_back(number: signal.Signals) -> None:
    """Install Python's handler of a signal anew: a library may have put its own over it, which Python does not notice.

    In another thread than the main one, where handlers can't be installed, nothing is done.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.getsignal(number))


def die_with_parent() -> None:
    """Have the kernel end this process (SIGKILL) when the one that started it ends. Linux only; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def dump_stacks_on_signal() -> None:
    """Have `DUMP_STACKS` write the stacks of all threads to stderr, also where the main thread hangs in native code."""
    faulthandler.register(DUMP_STACKS, file=_STDERR, all_threads=True, chain=False)
