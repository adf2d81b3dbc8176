"""The agent's structured log lines."""

import json
import logging
import sys

import pytest

from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.logs import JsonFormatter


def test_a_record_says_whose_it_is(environment: NodeEnvironment) -> None:
    """A log record is one JSON object with event, level, time, job, pod, node, rank and cluster version."""
    record = logging.LogRecord("edl", logging.WARNING, __file__, 1, "lost %s", ("ps-0",), None)
    line = json.loads(JsonFormatter(environment, lambda: 7).format(record))
    expected = {
        "event": "lost ps-0", "level": "warning", "logger": "edl", "job": "demo", "namespace": "default",
        "pod": "demo-edljob-worker-0", "node": "worker-0", "rank": 0, "version": 7,
    }  # fmt: skip
    assert line.items() >= expected.items()
    assert line["timestamp"].endswith("+00:00")


def test_an_error_keeps_its_trace(environment: NodeEnvironment) -> None:
    """An error's traceback is part of its log record."""
    try:
        int("no digit")
    except ValueError:
        record = logging.LogRecord("edl", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    text = JsonFormatter(environment, lambda: 1).format(record)
    assert "\n" not in text
    assert "ValueError: invalid literal" in json.loads(text)["exception"]


def test_a_job_of_a_trace_says_so(environment: NodeEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log records of a job with a trace have the id of the trace."""
    monkeypatch.setenv("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    record = logging.LogRecord("edl", logging.INFO, __file__, 1, "trains", (), None)
    line = json.loads(JsonFormatter(environment, lambda: 7).format(record))
    assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
