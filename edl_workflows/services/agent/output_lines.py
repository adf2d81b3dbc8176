"""Cuts the output of a training process into lines for the pod's log, progress bars included."""

import re
import time
from collections.abc import Callable, Sequence

SHOW_SECONDS = 5.0
"""So long output may stay without a line end before it becomes a line: a state of a progress bar, or the
beginning of a line."""
LINE_BYTES = 64 * 1024
"""Longer lines are given out in pieces."""

_CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|[\s\x08]")
"""Movements of a terminal's cursor, which bars write, and white space."""
_OTHER_WRITER = re.compile(rb"[^\s\x08\x1b,.;:)\]|%][^\r\n]*\n")
"""How a piece of output begins that does not belong to the bar before it: a whole line, not a bar's rest."""


class OutputLines:
    """Lines of an output that arrives in pieces of any length.

    A carriage return ends a state of a progress bar. Bars move many times a second, so one state every
    `SHOW_SECONDS` is a line, and the last one. A message that another writer, such as a library on stderr,
    adds while a bar stands is a line of its own.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._text = b""
        """What has come since the last line end or carriage return."""
        self._state = b""
        """The newest state of a bar before it, if it is no line yet."""
        self._is_bar = False
        """Whether the present line has a carriage return."""
        self._since: float | None = None
        """When the first of both came."""
        self._shown = b""
        """What was given out of the present line."""

    @property
    def seconds_left(self) -> float | None:
        """Until `take_due` has a line; None if it has none without further output."""
        return None if self._since is None else max(0.0, self._since + SHOW_SECONDS - self._clock())

    def add(self, output: bytes) -> list[bytes]:
        """The lines that a piece of output completes."""
        other = self._is_bar and self._text and _OTHER_WRITER.match(output)
        lines = self._end_line(b"") if other else []
        *ended, begun = output.split(b"\n")
        lines += [line for end in ended for line in self._end_line(end)]
        *states, self._text = (self._text + begun).split(b"\r")
        self._state = _newest([self._state, *states])
        self._is_bar = self._is_bar or bool(states)
        if self._since is None and (self._text or self._state):
            self._since = self._clock()
        if len(self._text) >= LINE_BYTES:
            lines.append(self._text)
            self._forget(shown=self._text)
        return [*lines, *self.take_due()]

    def take_due(self) -> list[bytes]:
        """The present state of a bar, or the beginning of a line, if it has waited long enough."""
        if self.seconds_left != 0.0:
            return []
        text = _newest([self._state, self._text])
        self._forget(shown=text + b"\n" if text else self._shown)
        return [text + b"\n"] if text else []

    def end(self) -> list[bytes]:
        """The last line, if it has no end."""
        text, shown = _newest([self._state, self._text]), self._shown
        self._forget()
        return [text + b"\n"] if text or _is_open(shown) else []

    def _end_line(self, end: bytes) -> list[bytes]:
        text, state, shown = self._text + end, self._state, self._shown
        self._forget()
        if b"\r" in text or state:
            text = _newest([state, *text.split(b"\r")])
        is_over = bool(shown) and not _is_open(shown) and not text.strip()
        return [] if is_over else [text + b"\n"]

    def _forget(self, shown: bytes = b"") -> None:
        self._text, self._state, self._since, self._shown = b"", b"", None, shown
        self._is_bar = False


def _is_open(shown: bytes) -> bool:
    """Whether what was given out is a piece of a line without its end."""
    return bool(shown) and not shown.endswith(b"\n")


def _newest(states: Sequence[bytes]) -> bytes:
    """The last state that shows something; empty if none does."""
    return next((state.rstrip(b" \x08") for state in reversed(states) if _CONTROLS.sub(b"", state)), b"")
