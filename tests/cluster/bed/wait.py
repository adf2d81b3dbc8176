"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable

from tests.cluster.bed.process import BedError


def until(holds: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Wait until a condition holds.

    Raises:
        BedError: it did not in `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise BedError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)
