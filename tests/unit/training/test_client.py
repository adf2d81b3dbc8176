"""The typed calls of a master's API, and what closing their connection means while others talk."""

import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_type_hints
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import BaseModel, TypeAdapter

from edl_workflows.core.exceptions import ConflictError, UnavailableError
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.core.protocol.routes import ROUTES, Route
from edl_workflows.testing import free_port
from edl_workflows.training.client import MasterClient
from tests.unit.core.protocol.route_examples import ANSWERS, REQUESTS

NODE = NodeRef(type="worker", id=0)


@dataclass(frozen=True)
class Request:
    """A request that a server received; `connection` is the client's port."""

    route: Route[Any, Any]
    query: dict[str, list[str]]
    body: bytes
    token: str
    connection: int


@dataclass
class Server:
    """A master that answers by the table of routes. It holds its answers back until `may_answer`, and ends
    each connection after its answer if `ends_connections`."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    ends_connections: bool = False
    status: int = 200
    answer: bytes | None = None
    began: threading.Event = field(default_factory=threading.Event)
    may_answer: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(path: str = "") -> Iterator[Server]:
    """Serve under a path on a port of this machine."""
    server = Server()
    server.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            super().handle_one_request()
            self.close_connection |= server.ends_connections

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            route = next(
                route
                for route in ROUTES
                if route.method == self.command
                and re.fullmatch(path + re.sub(r"{\w+}", r"\\w+", route.path), url.path)
            )
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            port = self.client_address[1]
            token = self.headers["Authorization"]
            server.requests.append(Request(route, parse_qs(url.query), body, token, port))
            server.began.set()
            assert server.may_answer.wait(240)
            text = server.answer if server.answer is not None else json.dumps(ANSWERS[route.answer]).encode()
            self.send_response(server.status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815 - the name that the base class calls

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Nothing: a test reads what fails."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}{path}"
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.may_answer.set()
            http.shutdown()
            thread.join()


def test_closing_lets_calls_under_way_end_and_refuses_new_ones() -> None:
    """Closing lets calls in progress end, and rejects new ones."""
    with serving() as server:
        server.may_answer.clear()
        client = MasterClient(server.url, "token")
        answers: list[Directive] = []
        thread = threading.Thread(target=lambda: answers.append(client.directive(NODE, 0, 0.0)))
        thread.start()
        assert server.began.wait(240)

        client.close()

        with pytest.raises(UnavailableError, match="is closed"):
            client.directive(NODE, 0, 0.0)
        server.may_answer.set()
        thread.join(240)
        assert len(answers) == len(server.requests) == 1


def test_calls_share_a_connection_until_the_master_ends_it() -> None:
    """Calls one after another use one connection. Where the master has ended it, the next call opens
    another, without an error."""
    with serving() as server, MasterClient(server.url, "token") as client:
        for _ in range(3):
            client.directive(NODE, 0, 0.0)
        server.ends_connections = True
        client.directive(NODE, 0, 0.0)
        client.directive(NODE, 0, 0.0)

    ports = [request.connection for request in server.requests]
    assert len(set(ports[:4])) == 1
    assert ports[4] != ports[3]


def test_a_rejection_has_the_masters_message() -> None:
    """A call that the master rejects raises the error of its status, with the master's message."""
    with serving() as server, MasterClient(server.url, "token") as client:
        server.status, server.answer = 409, b'{"error": "another size"}'
        with pytest.raises(ConflictError, match=r"/v1/directive.* answered 409: another size"):
            client.directive(NODE, 0, 0.0)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        pytest.param(503, b"busy", id="busy"),
        pytest.param(302, b"", id="redirect"),
        pytest.param(200, b"<html>", id="another-server"),
    ],
)
def test_an_unusable_answer_is_unavailable(status: int, answer: bytes) -> None:
    """What is no answer of a master raises UnavailableError, so that the call is repeated."""
    with serving() as server, MasterClient(server.url, "token") as client:
        server.status, server.answer = status, answer
        with pytest.raises(UnavailableError, match="/v1/directive"):
            client.directive(NODE, 0, 0.0)
    assert len(server.requests) == 1


def test_a_master_that_is_not_there_is_unavailable() -> None:
    """Nobody listens: UnavailableError after one attempt, with the address."""
    port = free_port()
    with (
        MasterClient(f"http://127.0.0.1:{port}", "token") as client,
        pytest.raises(UnavailableError, match=rf"{port}/v1/directive.*does not answer"),
    ):
        client.directive(NODE, 0, 0.0)


CALLS = {
    name: method
    for name, method in vars(MasterClient).items()
    if inspect.isfunction(method) and not name.startswith("_") and name != "close"
}
MESSAGES = {route.request: body for route, body in REQUESTS.items()}
_OTHERS = {NodeRef: NODE, str: "name", int: -1, float: 0.0}


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
    with serving("/prefix") as server, MasterClient(f"{server.url}/", "token") as client:
        answers = [call(client, method) for method in CALLS.values()]

    assert not built
    requests = server.requests
    assert {request.token for request in requests} == {"Bearer token"}
    assert [type(answer) for answer in answers] == [request.route.answer for request in requests]
    for request in requests:
        assert tuple(request.query) == request.route.query
        if request.route.method == "POST" and request.route.request is not None:
            message = request.route.request.model_validate_json(request.body)
            assert message.model_dump_json().encode() == request.body
    machine = [route for route in ROUTES if issubclass(route.answer, BaseModel) and not route.open]
    assert sorted(request.route.path for request in requests) == sorted(route.path for route in machine)
