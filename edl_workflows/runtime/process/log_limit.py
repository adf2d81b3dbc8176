"""Limits log lines that clients can cause at will: only some are logged, with the number of omitted ones."""

import logging
import time
from collections.abc import Callable, Hashable

SECONDS = 10.0
"""Interval between two lines of the same kind."""
MAX_KEYS = 256
"""Most kinds of lines that are distinguished. If there are more, all kinds are forgotten."""


class LogLimit:
    """Admits one line of each kind per `SECONDS`.

    Args:
        clock: the clock, in seconds since any time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[Hashable, tuple[float, int]] = {}

    def admit(self, kind: Hashable) -> int | None:
        """Decide about a line. Return the number of lines of this kind that were left out since the last
        one, or None to leave this one out."""
        now = self._clock()
        if len(self._kinds) >= MAX_KEYS:
            self._kinds.clear()
        last, left_out = self._kinds.get(kind, (float("-inf"), 0))
        if now - last < SECONDS:
            self._kinds[kind] = last, left_out + 1
            return None
        self._kinds[kind] = now, 0
        return left_out


class LogLimitFilter(logging.Filter):
    """A `LogLimit` for a logger of the standard library. Errors from the same line of code are of the same
    kind."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = LogLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        left_out = self._limit.admit((record.msg, _origin(record)))
        if left_out:
            record.msg = f"{record.msg} ({left_out} similar messages left out)"
        return left_out is not None


def _origin(record: logging.LogRecord) -> Hashable:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return type(error), trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


_filter = LogLimitFilter()


def limit_server_logs() -> None:
    """Limit what uvicorn and asyncio log about connections and requests."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_filter)  # the same filter is added only once
