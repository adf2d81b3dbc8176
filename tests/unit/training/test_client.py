"""The typed calls of a master's API, and what closing their connection means while others talk."""

import inspect
import re
import threading
from collections.abc import Callable
from typing import Any, get_type_hints

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.core.protocol.routes import ROUTES, Route
from edl_workflows.training.client import MasterClient
from tests.unit.core.protocol.route_examples import ANSWERS, REQUESTS

NODE = NodeRef(type="worker", id=0)


class SlowTransport(httpx.BaseTransport):
    """Answers when it is let to; notes what happens."""

    def __init__(self) -> None:
        self.began, self.may_answer = threading.Event(), threading.Event()
        self.closed = threading.Event()
        self.closed_too_early = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.began.set()
        assert self.may_answer.wait(240)
        self.closed_too_early = self.closed.is_set()
        return httpx.Response(200, json={"revision": 7})

    def close(self) -> None:
        self.closed.set()


def test_closing_lets_calls_under_way_end_and_refuses_new_ones() -> None:
    """Closing lets calls in progress end before the connection is closed, and rejects new ones. Otherwise a
    thread could open a connection that nobody closes."""
    transport = SlowTransport()
    client = MasterClient("http://master", "token", transport)
    answers: list[Directive] = []
    thread = threading.Thread(target=lambda: answers.append(client.directive(NODE, 0, 0.0)))
    thread.start()
    assert transport.began.wait(240)

    client.close()

    assert not transport.closed.is_set()
    with pytest.raises(UnavailableError, match="is closed"):
        client.directive(NODE, 0, 0.0)
    transport.may_answer.set()
    thread.join(240)
    assert [answer.revision for answer in answers] == [7]
    assert transport.closed.is_set()
    assert not transport.closed_too_early


def test_an_idle_client_closes_at_once() -> None:
    """Closing a client without a pending request closes its connection at once."""
    transport = SlowTransport()
    with MasterClient("http://master", "token", transport):
        pass
    assert transport.closed.is_set()


CALLS = {
    name: method
    for name, method in vars(MasterClient).items()
    if inspect.isfunction(method) and not name.startswith("_") and name != "close"
}
MESSAGES = {route.request: body for route, body in REQUESTS.items()}
_OTHERS = {NodeRef: NODE, str: "name", int: -1, float: 0.0}


def answer_by_table(requests: list[tuple[Route[Any, Any], httpx.Request]]) -> httpx.MockTransport:
    """Answers each request as the table says, and records it with its route."""

    def handle(request: httpx.Request) -> httpx.Response:
        route = next(
            route
            for route in ROUTES
            if route.method == request.method
            and re.fullmatch(re.sub(r"{\w+}", r"\\w+", route.path), request.url.path)
        )
        requests.append((route, request))
        return httpx.Response(200, json=ANSWERS[route.answer])

    return httpx.MockTransport(handle)


def call(client: MasterClient, method: Callable[..., Any]) -> Any:
    """Call a method with the example of its message."""
    hints = get_type_hints(method)
    del hints["return"]
    arguments = {
        name: _OTHERS[hint] if hint in _OTHERS else hint.model_validate(MESSAGES[hint])
        for name, hint in hints.items()
    }
    return method(client, **arguments)


def test_each_call_is_a_route_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each method calls another route of the table, with the route's message, and returns the model of its
    answer. None is missing but those for people. No reply costs a TypeAdapter, which takes six times as long
    to build as a reply to parse."""
    built: list[object] = []
    monkeypatch.setattr(TypeAdapter, "__init__", lambda *arguments, **_: built.append(arguments))
    requests: list[tuple[Route[Any, Any], httpx.Request]] = []

    with MasterClient("http://master", "token", answer_by_table(requests)) as client:
        answers = [call(client, method) for method in CALLS.values()]

    assert not built
    assert [type(one) for one in answers] == [route.answer for route, _ in requests]
    for route, request in requests:
        assert tuple(request.url.params) == route.query
        if route.method == "POST" and route.request is not None:
            message = route.request.model_validate_json(request.content)
            assert message.model_dump_json().encode() == request.content
    machine = [route for route in ROUTES if issubclass(route.answer, BaseModel) and not route.open]
    assert sorted(route.path for route, _ in requests) == sorted(route.path for route in machine)
