"""Programs behind Services, which the API server asks for the caller: they may answer anything."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from edl_workflows.core.exceptions import EdlError, ForbiddenError, NotFoundError, UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS

ADDRESS = client.ServiceAddress("x", "web", 80, "/v1/live")
Answer = Callable[[BaseHTTPRequestHandler], None]
Serve = Callable[[Answer], tuple[Cluster, list[str]]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts an API server that answers all requests so; returns its handle and the paths asked for."""
    servers = []

    def start(answer: Answer) -> tuple[Cluster, list[str]]:
        paths: list[str] = []

        class Proxy(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                paths.append(self.path)
                answer(self)

            def log_message(self, *_arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        return Cluster.from_kubeconfig(tmp_path / "config"), paths

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _send(handler: BaseHTTPRequestHandler, code: int, body: bytes, **headers: str) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def test_the_answer_is_the_programs(serve: Serve) -> None:
    """The request carries the caller's credentials to the API server."""
    cluster, paths = serve(lambda handler: _send(handler, 200, handler.headers["Authorization"].encode()))
    assert client.read_service(cluster, ADDRESS, "look") == b"Bearer t"
    assert paths == ["/api/v1/namespaces/x/services/web:80/proxy/v1/live"]


def test_a_program_gets_no_cookie(serve: Serve) -> None:
    """The API server takes the caller's token out of the request, but not its cookies."""
    received: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        received.append(handler.headers["Cookie"])
        _send(handler, 200, b"{}")

    cluster, _ = serve(answer)
    cluster.api_client.cookie = "session=secret"
    client.read_service(cluster, ADDRESS, "look")
    client.find(cluster, PODS, "a")
    assert received == [None, "session=secret"]


@pytest.mark.parametrize(
    ("code", "document", "error"),
    [
        (403, {"kind": "Status", "message": "no"}, ForbiddenError),
        (404, {"kind": "Status", "message": "no"}, NotFoundError),
        (403, {"error": "no"}, UnavailableError),
        (404, [], UnavailableError),
    ],
)
def test_a_refusal_is_the_api_servers_or_the_programs(
    serve: Serve, code: int, document: object, error: type[EdlError]
) -> None:
    """A Status is the API server's; any other answer is that of a program that can't be used."""
    cluster, _ = serve(lambda handler: _send(handler, code, json.dumps(document).encode()))
    with pytest.raises(error, match="cannot look"):
        client.read_service(cluster, ADDRESS, "look")


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    """Otherwise a program could have requests of its choice sent with the caller's credentials."""
    elsewhere = "/api/v1/namespaces/kube-system/secrets"
    cluster, paths = serve(lambda handler: _send(handler, 302, b"", Location=elsewhere))
    with pytest.raises(UnavailableError, match="answers 302"):
        client.read_service(cluster, ADDRESS, "look")
    assert len(paths) == 1


@pytest.mark.parametrize("code", [200, 500])
@pytest.mark.parametrize("piece", [b"x", b"x" * 100_000], ids=["slow", "long"])
def test_an_answer_without_end_is_not_waited_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, code: int, piece: bytes
) -> None:
    """A program that always sends more, also as the reason of a refusal, costs a bounded time and a bounded
    amount of memory."""
    released, ended = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", str(10**9))
        handler.end_headers()
        try:
            while not released.wait(0.02):
                handler.wfile.write(piece)
        except OSError:
            ended.set()

    monkeypatch.setattr(client, "SERVICE_SECONDS", 0.5)
    cluster, _ = serve(answer)
    try:
        with pytest.raises(UnavailableError, match="longer than 65536 bytes, or takes"):
            client.read_service(cluster, ADDRESS, "look")
        assert ended.wait(60)
    finally:
        released.set()
