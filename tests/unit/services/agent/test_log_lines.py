"""Lines of the agent and the master in the logs of pods, as people read them."""

import json
import logging
import sys
from typing import Any

import pytest

from edl_workflows.core.protocol.log_lines import render_own_line
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.logs import JsonFormatter

POD = "demo-edljob-worker-0"
AGENT = "edl_workflows.services.agent.supervisor"
MASTER_LINE: dict[str, Any] = {
    "plan": 1,
    "create": [["worker", 0]],
    "why": "two words",
    "event": "asked for pods",
    "job": "demo",
    "namespace": "default",
    "pod": "demo-dlrover-master-0",
    "level": "info",
    "timestamp": "2026-11-26T18:12:30.117024Z",
}


def agent_line(environment: NodeEnvironment, event: str, logger: str = AGENT, error: Any = None) -> str:
    record = logging.LogRecord(logger, logging.WARNING, __file__, 1, event, (), error)
    record.created = 1_700_000_000.25
    return JsonFormatter(environment, lambda: 7).format(record)


def test_an_agents_line_is_readable(environment: NodeEnvironment) -> None:
    """An agent's line has time, level, event and the fields that differ between its lines."""
    shown = render_own_line(agent_line(environment, "lost ps-0"), POD)

    assert shown == "2023-11-14 22:13:20.250Z edl-agent WARNING lost ps-0 rank=0 version=7"


def test_an_error_stays_one_line_with_its_trace(environment: NodeEnvironment) -> None:
    """The traceback is a field of the one line."""
    try:
        int("no digit")
    except ValueError:
        shown = render_own_line(agent_line(environment, "failed", error=sys.exc_info()), POD)

    assert "\n" not in shown
    assert "exception=" in shown
    assert "ValueError: invalid literal" in shown


def test_a_masters_line_is_readable() -> None:
    """The master's own fields stand after its event; a value that is more than a word is JSON."""
    shown = render_own_line(json.dumps(MASTER_LINE), MASTER_LINE["pod"], master=True)

    assert shown == (
        "2026-11-26 18:12:30.117Z edl-master INFO asked for pods plan=1 "
        'create=[["worker", 0]] why="two words"'
    )


def test_controls_in_an_event_are_escaped(environment: NodeEnvironment) -> None:
    """What JSON has escaped can't manipulate a terminal or pass for another line when it is unpacked."""
    shown = render_own_line(agent_line(environment, "a\x1b[2J\nb\ud800"), POD)

    assert "a\\x1b[2J\\x0ab\\ud800" in shown
    assert shown.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "step 50 loss 1.5",
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"loss":  0.5, "step": 7}\r',
        '{"event": "x", "level": "info", "timestamp": "2026-01-01T00:00:00Z", "pod": "demo-edljob-worker-0"}',
        json.dumps(MASTER_LINE),
        json.dumps({**MASTER_LINE, "logger": AGENT}),
        json.dumps({**MASTER_LINE, "logger": AGENT, "pod": POD, "timestamp": "yesterday"}),
        json.dumps({**MASTER_LINE, "logger": AGENT, "pod": POD, "level": 1}),
        json.dumps({**MASTER_LINE, "logger": [AGENT], "pod": POD}),
    ],
    ids=range(12),
)
def test_other_lines_are_not_changed(text: str) -> None:
    """A program's lines, its own JSON too, and lines about other pods are returned as they are."""
    assert render_own_line(text, POD) is text


def test_a_programs_record_is_its_own(environment: NodeEnvironment) -> None:
    """A program that logs with the agent's handler chose JSON: its records stay JSON."""
    text = agent_line(environment, "epoch 1", logger="train")

    assert render_own_line(text, POD) is text
