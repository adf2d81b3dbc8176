"""A thread that calls a function periodically, and at once on request."""

import math
import threading
import time
from collections.abc import Callable

import structlog

from edl_workflows.core.exceptions import EdlError

log = structlog.get_logger(__name__)

GATHER_SECONDS = 0.2
"""Changes often come in groups: one call handles them together."""
RETRY_SECONDS = 2.0
"""Delay of the next call after a conflict, or while something is not listed yet."""


class PeriodicLoop:
    """The thread.

    Args:
        name: name of the loop, for the log.
        process: called with True to process everything, with False for only what is new. It returns the
            seconds until everything is due again; None: not before `ask` is called. It may raise.
        ready: waits up to this many seconds until the first call of `process` is possible, and returns
            whether it is.
        period: seconds until the next call after an unexpected error.
    """

    def __init__(
        self,
        name: str,
        process: Callable[[bool], float | None],
        ready: Callable[[float], bool],
        period: float,
    ) -> None:
        self._name = name
        self._process = process
        self._ready = ready
        self._period = period
        self._changed = threading.Condition()
        self._asked: bool | None = None
        """The request of `ask`: what is new (False), everything (True), or no request (None)."""
        self._due = 0.0
        """When everything is due after the last call of `process`, in monotonic seconds; infinite: never."""
        self._due_sooner = math.inf
        """The same, as requested by `ask_within`."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask(self, *, everything: bool) -> None:
        """Request a call of `process` soon."""
        with self._changed:
            self._asked = everything or bool(self._asked)
            self._changed.notify()

    def ask_within(self, seconds: float) -> None:
        """Request a call of `process` for everything in at most so many seconds. Further requests until then
        are handled by the same call."""
        with self._changed:
            self._due_sooner = min(self._due_sooner, time.monotonic() + seconds)
            self._changed.notify()

    def stop(self, seconds: float) -> None:
        """Stop, and wait at most this long for a call in progress."""
        with self._changed:
            self._stopped.set()
            self._changed.notify()
        if self._thread.ident:
            self._thread.join(seconds)

    def problems(self) -> list[str]:
        """Problems that only a restart of the process solves."""
        dead = self._thread.ident and not self._thread.is_alive() and not self._stopped.is_set()
        return [f"the {self._name} ended"] if dead else []

    def _run(self) -> None:
        while not self._stopped.is_set() and not self._ready(0.5):
            pass  # `ready` already waits
        while (everything := self._wait()) is not None:
            seconds = self._guarded(everything)
            self._due = math.inf if seconds is None else time.monotonic() + seconds

    def _guarded(self, everything: bool) -> float | None:
        try:
            return self._process(everything)
        except EdlError as error:
            log.warning("look failed; trying again", loop=self._name, error=str(error))
            return RETRY_SECONDS
        except Exception:
            # A bug must not end the loop; nothing changes until the next call.
            log.exception("defect in a look", loop=self._name)
            return self._period

    def _wait(self) -> bool | None:
        """Wait for the next call: True for everything, False for what is new, None when the loop is
        stopped.
        """
        with self._changed:
            while not self._stopped.is_set() and self._asked is None and (left := self._left()) > 0:
                self._changed.wait(None if left == math.inf else left)
        if self._stopped.wait(GATHER_SECONDS):
            return None
        with self._changed:
            everything, self._asked = self._left() <= 0 or bool(self._asked), None
            if everything:
                self._due_sooner = math.inf
            return everything

    def _left(self) -> float:
        """Seconds until everything is due."""
        return min(self._due, self._due_sooner) - time.monotonic()
