"""The lines that this package's own processes write into the logs of pods, as people read them.

The agent logs one JSON object per line between the lines of its training program
(`edl_workflows.training.logs`), and the master logs nothing else. What a program writes is not changed, JSON
or not.
"""

import json
from datetime import UTC, datetime
from typing import Any

from edl_workflows.core.protocol.reported_text import escape_controls

_LOGGER = "edl_workflows."
"""The loggers of the agent and of its library, also in training programs that log with `json_lines`."""
_MARKS = ("event", "level", "timestamp", "pod")
_SAME = frozenset({*_MARKS, "logger", "job", "namespace", "node", "trace_id"})
"""Not shown as fields: they stand before the event, or are the same in all lines of a pod."""


def render_own_line(text: str, pod: str, *, master: bool = False) -> str:
    """A line of the agent as ``2026-01-01 12:00:00.000Z edl-agent INFO event key=value``, without control
    characters. Any other line is returned as it is.

    Args:
        text: the line, without its line feed.
        pod: name of the pod whose log it is.
        master: whether that is a job's master, all of whose JSON lines are rendered.
    """
    line = _parse(text)
    if line is None or line["pod"] != pod or not (master or str(line.get("logger", "")).startswith(_LOGGER)):
        return text
    try:
        at = datetime.fromisoformat(line["timestamp"]).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    time = at.replace(tzinfo=None).isoformat(" ", "milliseconds")
    fields = (f"{key}={_value(value)}" for key, value in line.items() if key not in _SAME)
    whose = "edl-master" if master else "edl-agent"
    return escape_controls(
        " ".join([f"{time}Z", whose, line["level"].upper(), line["event"], *fields]), keep="\t"
    )


def _parse(text: str) -> dict[str, Any] | None:
    """The object that the line holds, if all marks are texts."""
    if not text.startswith("{"):
        return None
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if all(isinstance(line.get(mark), str) for mark in _MARKS) else None


def _value(value: Any) -> str:
    """A value on one line; a text is quoted where it would be mistaken for more than one value."""
    if (
        isinstance(value, str)
        and value
        and not any(character.isspace() or character in "\"'=" for character in value)
    ):
        return value
    return json.dumps(value, ensure_ascii=False)
