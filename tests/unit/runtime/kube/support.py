"""An API server that answers as a test says."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from edl_workflows.core.exceptions import ForbiddenError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster
from edl_workflows.runtime.kube.resources import Scope


@dataclass
class Answer:
    """What the scripted server says to one request.

    Attributes:
        code, body, headers: of the response.
        cut: break the connection without a response.
        unfinished: send the body as the first chunk of a longer one, then break the connection.
    """

    code: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    unfinished: bool = False


class ScriptedApi:
    """Answers requests one after the other as told; the last answer stays."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [Answer(body={})]
        self.requests: list[tuple[str, str]] = []
        self._connections: list[socket.socket] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                script._connections.append(self.connection)

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                script.requests.append((self.command, self.path))
                answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                if answer.cut:
                    self.close_connection = True
                    return
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.code)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.unfinished:
                    self.send_header("Transfer-Encoding", "chunked")
                    body = b"%x\r\n%s\r\n" % (len(body), body)
                    self.close_connection = True
                else:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the base class names them

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def cluster(self) -> Cluster:
        configuration = Configuration(host=f"http://127.0.0.1:{self._server.server_port}")
        configuration.retries = False
        return Cluster.from_api_client(ApiClient(configuration), "ns").with_policy(CallPolicy(attempts=3))

    def close(self) -> None:
        self._server.shutdown()
        for connection in self._connections:  # clients keep theirs open for another request
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()


def refuse_lists(monkeypatch: pytest.MonkeyPatch, refused: set[str]) -> None:
    """Lists in these namespaces are forbidden from now on, as long as they are in the set."""
    list_objects = client.list_objects

    def list_if_allowed(cluster: Cluster, scope: Scope, *arguments: Any, **options: Any) -> Any:
        if scope.namespace in refused:
            raise ForbiddenError(f"not allowed in {scope.namespace}")
        return list_objects(cluster, scope, *arguments, **options)

    monkeypatch.setattr(client, "list_objects", list_if_allowed)


def eventually(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait until the condition holds.

    Raises:
        AssertionError: it did not in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
