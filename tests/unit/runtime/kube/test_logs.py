"""What pods print."""

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.runtime.kube import logs
from edl_workflows.runtime.kube.log_stream import MAX_LINE, LogPosition, LogStream
from edl_workflows.runtime.kube.logs import LogOptions
from tests.unit.runtime.kube.support import Answer, ScriptedApi

MIB = 2**20
TIME = "2026-01-01T00:00:01.5Z"

T = TypeVar("T")


def measure(work: Callable[[], T]) -> tuple[T, int]:
    """What a function returns, and the most bytes that were allocated meanwhile."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_read(scripted: ScriptedApi) -> None:
    """The log has the requested lines as text, even if bytes are not valid UTF-8."""
    scripted.answers = [Answer(body=b"one\ntwo \xff\n")]

    text = logs.read(scripted.cluster(), "p", options=LogOptions("main", tail_lines=2, previous=True))

    assert text == "one\ntwo \N{REPLACEMENT CHARACTER}\n"
    assert scripted.requests == [
        ("GET", "/api/v1/namespaces/ns/pods/p/log?container=main&tailLines=2&previous=true")
    ]


def test_follow(scripted: ScriptedApi) -> None:
    """A followed log is read line by line, including an unfinished last line, and ends with the container."""
    scripted.answers = [Answer(body=b"one\n\ntwo")]

    assert list(logs.follow(scripted.cluster(), "p", "other")) == ["one", "", "two"]
    assert scripted.requests == [("GET", "/api/v1/namespaces/other/pods/p/log?follow=true")]


def test_not_started(scripted: ScriptedApi) -> None:
    """If a container has not started, reading its log raises the server's error."""
    message = 'container "main" in pod "p" is waiting to start: ContainerCreating'
    scripted.answers = [Answer(400, {"kind": "Status", "message": message})]

    with pytest.raises(InvalidError, match="ContainerCreating"):
        list(logs.follow(scripted.cluster(), "p"))


def test_a_line_without_an_end_takes_bounded_memory(scripted: ScriptedApi) -> None:
    """A training program may print gigabytes without a line feed. The triggerer, which follows the logs of
    all tasks, keeps the beginning of the line only, and reads on."""
    scripted.answers = [Answer(body=f"{TIME} ".encode() + b"x" * (32 * MIB) + f"\n{TIME} end\n".encode())]
    stream = LogStream(scripted.cluster(), "p", "ns", "main", LogPosition(), 10)

    lines, memory = measure(lambda: list(stream))

    assert [line.text for line in lines] == ["x" * MAX_LINE + "…", "end"]
    assert memory < 4 * MIB


def test_the_end_of_a_log_with_long_lines_takes_bounded_memory(scripted: ScriptedApi) -> None:
    """However much a pod prints, the newest bytes of its log are kept in bounded memory."""
    scripted.answers = [Answer(body=b"x" * (32 * MIB) + b"\xe2\x82\xac end\n")]

    text, memory = measure(lambda: logs.read_end(scripted.cluster(), "p", "ns", LogOptions("main"), 100))

    assert text == "x" * 92 + "€ end\n"
    assert memory < 4 * MIB


def test_a_message_without_a_time_does_not_change_the_position(scripted: ScriptedApi) -> None:
    """A node's agent may write such a line into a log; a later stream continues after the newest line."""
    trouble = "failed to create fsnotify watcher: too many open files"
    scripted.answers = [Answer(body=f"{TIME} one\n{trouble}".encode())]

    lines = list(LogStream(scripted.cluster(), "p", "ns", "main", LogPosition(), 10))

    assert [line.text for line in lines] == ["one", trouble]
    assert lines[-1].position == LogPosition(TIME, 1)
    assert lines[-1].position.since is not None
