"""What pods print."""

import pytest

from edl_workflows.exceptions import InvalidError
from edl_workflows.kube import logs
from edl_workflows.kube.logs import LogOptions
from tests.unit.kube.support import Answer, ScriptedApi


def test_read(scripted: ScriptedApi) -> None:
    """A log is text, of the lines that were asked for; bytes that are no UTF-8 do not break it."""
    scripted.answers = [Answer(body=b"one\ntwo \xff\n")]

    text = logs.read(scripted.cluster(), "p", options=LogOptions("main", tail_lines=2, previous=True))

    assert text == "one\ntwo \N{REPLACEMENT CHARACTER}\n"
    assert scripted.requests == [
        ("GET", "/api/v1/namespaces/ns/pods/p/log?container=main&tailLines=2&previous=true")
    ]


def test_follow(scripted: ScriptedApi) -> None:
    """A followed log comes line by line, the unfinished last one too, and ends with the container."""
    scripted.answers = [Answer(body=b"one\n\ntwo")]

    assert list(logs.follow(scripted.cluster(), "p", "other")) == ["one", "", "two"]
    assert scripted.requests == [("GET", "/api/v1/namespaces/other/pods/p/log?follow=true")]


def test_not_started(scripted: ScriptedApi) -> None:
    """A container that has printed nothing because it has not started is an error in the server's words."""
    message = 'container "main" in pod "p" is waiting to start: ContainerCreating'
    scripted.answers = [Answer(400, {"kind": "Status", "message": message})]

    with pytest.raises(InvalidError, match="ContainerCreating"):
        list(logs.follow(scripted.cluster(), "p"))
