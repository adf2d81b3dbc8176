"""Clients of our HTTP servers that send nothing, send too much, or do not read the response."""

import asyncio
import contextlib
import http.client
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from edl_workflows.runtime.process import connections, http_protocol
from edl_workflows.runtime.process.connections import Connections, open_listeners
from edl_workflows.runtime.process.http import HttpServer, ListenOptions, serve_in_thread

DEADLINE = 240.0
TOLD = b"GET / HTTP/1.1\r\nHost: here\r\n"


async def answer(request: Request) -> PlainTextResponse:
    """Returns the length of the body."""
    return PlainTextResponse(str(len(await request.body())))


async def flood(_request: Request) -> StreamingResponse:
    """A response that is larger than the buffers of any client."""

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(1024):
            yield bytes(2**20)

    return StreamingResponse(blocks())


LARGE = 64 * 2**20


async def large(_request: Request) -> PlainTextResponse:
    """A response that the server has completely in memory."""
    return PlainTextResponse(bytes(LARGE))


APP = Starlette(
    routes=[Route("/", answer, methods=["GET", "POST"]), Route("/flood", flood), Route("/large", large)]
)


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """Host and port of a server."""
    with serve_in_thread(APP, ListenOptions("127.0.0.1", 0), "server") as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def ask(address: tuple[str, int]) -> int:
    """The status of the response to a well-behaved client."""
    client = http.client.HTTPConnection(*address, timeout=DEADLINE)
    with contextlib.closing(client):
        client.request("GET", "/")
        return client.getresponse().status


def ended(client: socket.socket) -> bytes:
    """What the server sends before it closes the connection. Fails if it does not close it."""
    client.settimeout(DEADLINE)
    said = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := client.recv(65536):
            said += data
    return bytes(said)


def sent_until_cut(client: socket.socket, piece: bytes, most: int) -> int:
    """The number of bytes of an endless stream that the server reads before it closes the connection."""
    client.settimeout(DEADLINE)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most:
            client.sendall(piece)
            sent += len(piece)
    return sent


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "one header": (TOLD + b"X: ", b"x" * 65536),
    "many headers": (TOLD, b"X: x\r\n" * 10000),
    "a header's name": (TOLD, b"x" * 65536),
    "the target": (b"GET /", b"x" * 65536),
    "trailers": (
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X: x\r\n" * 10000,
    ),
    "one trailer": (
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        b"x" * 65536,
    ),
    "a chunk's extension": (
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
        b"x" * 65536,
    ),
    "requests that wait": (b"", (TOLD + b"\r\n") * 2000),
}


@pytest.mark.parametrize("part", ENDLESS)
def test_heads_are_bounded(server: tuple[str, int], part: str) -> None:
    """The size of each part of a request but its body is bounded: the connection is closed, and other clients
    are served."""
    begin, piece = ENDLESS[part]
    with socket.create_connection(server) as client:
        client.sendall(begin)
        reader = threading.Thread(target=ended, args=(client,))
        reader.start()
        sent = sent_until_cut(client, piece, 64 * 2**20)
        reader.join()

    assert sent < 32 * 2**20  # what the kernel's buffers hold is among it
    assert ask(server) == 200


def test_a_head_that_is_too_large_is_answered(server: tuple[str, int]) -> None:
    """A request with a head that is too large, sent at once, gets the status 431."""
    with socket.create_connection(server) as client:
        client.sendall(TOLD + b"X: " + b"x" * http_protocol.MAX_HEAD_BYTES + b"\r\n\r\n")
        assert ended(client).startswith(b"HTTP/1.1 431 ")


def test_large_heads_and_bodies_in_many_chunks_pass(server: tuple[str, int]) -> None:
    """The limits are far above what clients send: a header of 16 KiB and a body in chunks of one byte are
    accepted."""
    with socket.create_connection(server) as client:
        client.sendall(
            b"POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
            b"X: " + b"x" * 16384 + b"\r\n\r\n" + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n"
        )
        assert ended(client).endswith(b"50000")


def test_silent_connections_make_room() -> None:
    """At the limit of connections, the one that has waited longest is closed for a new one."""
    with running(limit=4) as (server, address):
        silent = [socket.create_connection(address) for _ in range(12)]
        try:
            assert ask(address) == 200
            assert ended(silent[0]) == b""
            assert len(server.connections) <= 4
        finally:
            for client in silent:
                client.close()


def test_busy_connections_are_kept() -> None:
    """Connections with a request in progress are not dropped: new ones are refused until there is room."""
    with running(limit=2) as (server, address), contextlib.ExitStack() as clients:
        busy = [clients.enter_context(socket.create_connection(address)) for _ in range(2)]
        for client in busy:
            client.sendall(b"GET /flood HTTP/1.1\r\nHost: here\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        with socket.create_connection(address) as refused:
            assert ended(refused) == b""
        for client in busy:
            assert client.recv(1)
        busy[0].close()
        wait_for(lambda: len(server.connections) < 2)
        assert ask(address) == 200


LATE: dict[str, tuple[str, bytes]] = {
    "no request": ("REQUEST_SECONDS", b""),
    "half a head": ("REQUEST_SECONDS", TOLD),
    "half a body": ("BODY_SECONDS", TOLD.replace(b"GET", b"POST") + b"Content-Length: 9\r\n\r\nhalf"),
    "an answer that is not read": ("READING_SECONDS", b"GET /flood HTTP/1.1\r\nHost: here\r\n\r\n"),
}


@pytest.mark.parametrize("owed", LATE)
def test_late_clients_are_dropped(monkeypatch: pytest.MonkeyPatch, owed: str) -> None:
    """Clients have a limited time for each part of a request; then the connection is closed."""
    limit, said = LATE[owed]
    monkeypatch.setattr(http_protocol, limit, 0.5)
    monkeypatch.setattr("edl_workflows.runtime.process.http.REQUEST_SECONDS", http_protocol.REQUEST_SECONDS)
    with running(limit=8) as (server, address), socket.create_connection(address) as client:
        client.sendall(said)
        wait_for(lambda: len(server.connections) == 1)
        wait_for(lambda: len(server.connections) == 0)
        assert ask(address) == 200


def test_a_slow_client_gets_its_answer(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that continues to read gets the whole response, however long it takes."""
    monkeypatch.setattr(http_protocol, "READING_SECONDS", 3.0)
    client = http.client.HTTPConnection(*server, timeout=DEADLINE)
    with contextlib.closing(client):
        client.request("GET", "/large")
        answer, read = client.getresponse(), 0
        began = time.monotonic()
        while part := answer.read(2**20):
            read += len(part)
            time.sleep(0.07)
    assert read == LARGE
    assert time.monotonic() - began > 3.0


@contextlib.contextmanager
def running(limit: int) -> Iterator[tuple[HttpServer, tuple[str, int]]]:
    """A server with a limit of connections, and its address."""
    server = HttpServer(APP, ListenOptions("127.0.0.1", 0))
    server.connections.limit = limit
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield server, ("127.0.0.1", int(server.url.rpartition(":")[2]))
    finally:
        server.should_exit = True
        thread.join()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_descriptor_left() -> None:
    """If the process has no file descriptors left, a new connection is closed at once instead of being
    retried forever."""
    [listener] = open_listeners("127.0.0.1", 0, Connections(100), 10.0)
    with listener:
        listener.listen()
        listener.setblocking(False)
        client = socket.create_connection(listener.getsockname())
        held, soft = [], resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, soft[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(BlockingIOError):
                listener.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, soft)
            for descriptor in held:
                os.close(descriptor)
        with client:
            assert ended(client) == b""
        with socket.create_connection(listener.getsockname()):
            wait_for(lambda: accepts(listener))


def accepts(listener: socket.socket) -> bool:
    """Whether a connection can be made."""
    with contextlib.suppress(BlockingIOError):
        listener.accept()[0].close()
        return True
    return False


def test_an_address_that_the_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without IPv6, `localhost` resolves to an address that can't be used; the server listens
    on the other one."""
    kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    found = [
        (socket.AF_INET6, *kind, ("2001:db8::1", 0, 0, 0)),
        (socket.AF_INET, *kind, ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
    [listener] = open_listeners("localhost", 0, Connections(100))
    with listener:
        assert listener.family == socket.AF_INET
    del found[1]
    with pytest.raises(OSError, match="address"):
        open_listeners("localhost", 0, Connections(100))


def test_descriptor_limit_is_raised() -> None:
    """A server raises its limit of file descriptors as far as possible, up to a bound, and uses half of them
    for connections."""
    program = (
        "import resource; from edl_workflows.runtime.process.connections import connection_limit;"
        "print(connection_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    limited = f"ulimit -Sn 100; ulimit -Hn 600; exec {sys.executable} -c '{program}'"
    said = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=True).stdout

    assert said.split() == ["300", "600"]
    assert connections.connection_limit() <= connections.MAX_CONNECTIONS
