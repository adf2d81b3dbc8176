"""Follows the log of one container from a position, so that it can continue with the next line after a broken
connection or in another process.

A position is the time of the newest line, as Kubernetes writes it (in nanoseconds), and how many lines with
that time were read, since several lines may have the same time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from edl_workflows.runtime.kube import logs
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.logs import LogOptions
from edl_workflows.runtime.kube.transport import LineStream

MAX_LINE = 4096
"""Characters of a line; the rest is cut off."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MAX_BYTES = 4 * (MAX_LINE + 1) + 64
"""Largest size of a received line: the time, and characters of up to four bytes."""


@dataclass(frozen=True)
class LogPosition:
    """The newest line that was read.

    Attributes:
        time: when it was written, as Kubernetes writes it; "" if no line was read.
        count: how many lines with that time were read.
    """

    time: str = ""
    count: int = 0

    def after(self, time: str) -> "LogPosition":
        """The position after one more line of this time."""
        return LogPosition(time, self.count + 1 if time == self.time else 1)

    @property
    def since(self) -> datetime | None:
        """The time to read from, in whole seconds, because servers ignore fractions."""
        if not self.time:
            return None
        return datetime.fromisoformat(self.time).replace(microsecond=0)


@dataclass(frozen=True)
class LogLine:
    """A line and the position after it."""

    text: str
    position: LogPosition


def read_line(raw: str, before: LogPosition) -> LogLine:
    """Parse a line that begins with its time. The kubelet may add messages of its own without a time;
    they don't change the position."""
    time, _, text = raw.partition(" ")
    timed = _TIME.fullmatch(time) is not None
    text = text if timed else raw
    return LogLine(shorten_line(text), before.after(time) if timed else before)


def shorten_line(text: str) -> str:
    """At most `MAX_LINE` characters of a line, with an ellipsis where it was cut."""
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + "…"


def skip_read_lines(lines: Iterator[str], last_position: LogPosition) -> Iterator[LogLine]:
    """The lines after a position.

    Args:
        lines: lines from the position's second on, as the server sent them, each with its time.
        last_position: the newest line that was read before.
    """
    position = LogPosition()
    for raw in lines:
        line = read_line(raw, position)
        position = line.position
        if position.time > last_position.time or (
            position.time == last_position.time and position.count > last_position.count
        ):
            yield line


class LogStream:
    """Iterate to follow a container's log; `close` ends it from any thread.

    Args:
        cluster: the API server.
        pod: name of the pod.
        namespace: of the pod.
        container: name of the container.
        position: the newest line that was read before.
        tail_lines: if no line was read before, the number of last lines to begin with; None for all lines.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        namespace: str,
        container: str,
        position: LogPosition,
        tail_lines: int | None = None,
    ) -> None:
        options = LogOptions(container, since_time=position.since, timestamps=True)
        options = options if position.time else replace(options, tail_lines=tail_lines)
        self._position = position
        request = logs.request_of(pod, namespace, options, follow=True)
        self._lines = LineStream(cluster, request, _MAX_BYTES)
        self.close = self._lines.close

    def __iter__(self) -> Iterator[LogLine]:
        """The lines after the position, until the container or the connection ends.

        Raises:
            NotFoundError: there is no such pod.
            InvalidError: the container has not started.
            ForbiddenError: the account may not read logs.
            UnavailableError: the connection broke.
        """
        raw = (line.decode("utf-8", "replace") for line in self._lines if line)
        return skip_read_lines(raw, self._position)
