"""Going on when the master is away: it may be replaced at any time, and training goes on meanwhile."""

import logging
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from edl_workflows.exceptions import UnavailableError

FIRST_DELAY = 0.1
"""Seconds: a hiccup should cost little, also in the middle of a switch."""
LONGEST_DELAY = 3.0
"""Seconds: a job's thousands of nodes ask a returning master no more than this often."""

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class BackOff:
    """Growing, jittered delays; `wait` ends early when `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._delay = FIRST_DELAY

    def reset(self) -> None:
        """The last attempt succeeded."""
        self._delay = FIRST_DELAY

    def next_delay(self) -> float:
        """Seconds until the next attempt, for callers that do something else meanwhile."""
        delay = self._delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._delay = min(LONGEST_DELAY, self._delay * 2)
        return delay

    def wait(self) -> bool:
        """Wait for the next attempt; True when it is time to stop instead."""
        return self._stop.wait(self.next_delay())


def patiently(call: Callable[[], Result], stop: threading.Event) -> Result | None:
    """Repeat a call until the master answers.

    Args:
        call: one attempt; repeatable.
        stop: gives up when set.

    Returns:
        The answer; None when stopped before there was one.

    Raises:
        EdlError: the master refused.
    """
    back_off = BackOff(stop)
    complained = False
    while not stop.is_set():
        try:
            return call()
        except UnavailableError as error:
            if not complained:
                log.warning("%s; trying on", error)
                complained = True
        if back_off.wait():
            break
    return None
