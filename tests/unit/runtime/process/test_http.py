"""The guard of our HTTP APIs reads a body completely before the application acts on it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edl_workflows.pipelines.argo.executor_plugin import PluginGuard
from edl_workflows.services.brain.guard import BrainGuard
from edl_workflows.services.di_server.guard import Admission, DiGuard
from edl_workflows.services.master.app import MasterGuard

GUARDED: dict[str, tuple[Callable[[ASGIApp], ASGIApp], str]] = {
    "brain": (lambda app: BrainGuard(app, None, lambda *_: None), "/v1/metrics"),
    "di-server": (
        lambda app: DiGuard(app, Admission(require_token=False), lambda *_: True, lambda *_: None),
        "/v2alpha1/default.walk/replicas",
    ),
    "master": (lambda app: MasterGuard(app, "secret"), "/v1/steps"),
    "plugin": (lambda app: PluginGuard(app, lambda: "secret"), "/api/v1/template.execute"),
}
"""Server: its guard, and a path whose route acts on a body."""


class Recorder:
    """An application that records the bodies on which it acted."""

    def __init__(self) -> None:
        self.acted_on: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, then act."""
        self.acted_on.append(await Request(scope, receive).body())
        await Response("done")(scope, receive, send)


def call(server: str, *messages: Message) -> tuple[list[bytes], list[int]]:
    """Send a request to a guarded application. Returns the bodies on which it acted, and the statuses of its
    responses."""
    recorder, statuses = Recorder(), list[int]()
    make, path = GUARDED[server]
    waiting = list(messages)

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [
        (b"host", b"localhost"),
        (b"authorization", b"Bearer secret"),
        (b"content-type", b"application/json"),
        (b"transfer-encoding", b"chunked"),
    ]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": headers}

    async def served() -> None:
        await make(recorder)(scope, receive, send)

    asyncio.run(served())
    return recorder.acted_on, statuses


def part(body: bytes, *, more: bool) -> Message:
    """A part of a body as an ASGI server passes it on."""
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize("server", GUARDED)
def test_a_whole_body_is_acted_on(server: str) -> None:
    """A body that arrives in several parts is processed as a whole."""
    assert call(server, part(b'{"replicas"', more=True), part(b": 1}", more=False)) == (
        [b'{"replicas": 1}'],
        [200],
    )


@pytest.mark.parametrize("server", GUARDED)
def test_a_body_that_was_cut_off_is_not_acted_on(server: str) -> None:
    """An incomplete body is ignored without a response, even if it is valid JSON so far."""
    assert call(server, part(b'{"replicas": 1}', more=True), {"type": "http.disconnect"}) == ([], [])
