"""The HTTP server of all our processes: uvicorn with bounded connections and request bodies."""

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.runtime.process.connections import (
    ACCEPTED_IN_A_TURN,
    Connections,
    connection_limit,
    open_listeners,
)
from edl_workflows.runtime.process.http_protocol import REQUEST_SECONDS, BoundedHttpProtocol
from edl_workflows.runtime.process.log_limit import limit_server_logs

STOP_SECONDS = 5
"""Seconds for responses in progress to complete when the server stops. Longer ones, such as long polls, are
aborted."""
_TICKS_A_SECOND = 10  # of uvicorn


@dataclass(frozen=True)
class ListenOptions:
    """Where and how a server listens.

    Attributes:
        port: port number; 0 for any free port.
        certificate, key: PEM files, for HTTPS.
        keep_alive: seconds that a connection may be idle.
        stop_seconds: seconds for responses in progress to complete when the server stops.
        option: the command-line option that sets the port, for error messages.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    keep_alive: int = 5
    stop_seconds: int = STOP_SECONDS
    option: str = "--port"


class HttpServer(uvicorn.Server):
    """Serves one application. `serve` runs it in asyncio's own event loop until ``should_exit`` is set.

    Its connections are bounded in number (see `edl_workflows.runtime.process.connections`), in size and in
    time (see `edl_workflows.runtime.process.http_protocol`). uvloop would accept connections without these
    bounds, so it is not used. The process handles signals, not the server.

    Args:
        app: the ASGI application.
        listen_at: where to listen.

    Raises:
        UnavailableError: the port is taken.
    """

    def __init__(self, app: ASGIApp, listen_at: ListenOptions) -> None:
        self.connections = Connections(connection_limit())
        protocol = functools.partial(BoundedHttpProtocol, self.connections)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", protocol),
                ws="none",  # WebSocket handshakes are handled as ordinary requests
                backlog=ACCEPTED_IN_A_TURN,
                ssl_certfile=listen_at.certificate,
                ssl_keyfile=listen_at.key,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing reads a client's address or scheme
                timeout_graceful_shutdown=listen_at.stop_seconds,
                timeout_keep_alive=listen_at.keep_alive,
            )
        )
        limit_server_logs()
        try:
            self._listeners = open_listeners(
                listen_at.host, listen_at.port, self.connections, REQUEST_SECONDS
            )
        except OSError as error:
            raise UnavailableError(
                f"can't listen on {listen_at.host}:{listen_at.port}: {error.strerror or error}; "
                f"choose another with {listen_at.option}"
            ) from error

    @property
    def url(self) -> str:
        host, port = self._listeners[0].getsockname()[:2]
        return f"{'https' if self.config.is_ssl else 'http'}://{host}:{port}"

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        del sockets
        await super().serve(list(self._listeners))

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second. Return whether to stop the server."""
        if counter % _TICKS_A_SECOND == 0:
            self.connections.drop_late()
        return await super().on_tick(counter)

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()

    def close(self) -> None:
        """Close the port of a server that was never started."""
        for listener in self._listeners:
            listener.close()


@contextlib.contextmanager
def serve_in_thread(app: ASGIApp, listen_at: ListenOptions, name: str) -> Iterator[str]:
    """Serve in a thread while the context lasts. Yields the server's URL.

    Args:
        app: the ASGI application.
        listen_at: where to listen.
        name: name of the thread, and of the server in error messages.

    Raises:
        UnavailableError: the port is taken.
    """
    http = HttpServer(app, listen_at)
    url = http.url
    thread = threading.Thread(target=lambda: asyncio.run(http.serve()), name=name, daemon=True)
    thread.start()
    try:
        while not http.started:
            if not thread.is_alive():
                raise UnavailableError(f"the {name} ended during its start; its log says why")
            thread.join(0.01)
        yield url
    finally:
        http.should_exit = True
        thread.join(listen_at.stop_seconds + 5)
        http.close()


async def read_body(scope: Scope, receive: Receive, size: int, seconds: float) -> bytes:
    """Read the complete body of a request.

    Args:
        scope: ASGI scope of the request.
        receive: ASGI receive function of the request.
        size: largest body in bytes.
        seconds: time within which the body must arrive.

    Raises:
        ClientDisconnect: the client disconnected before the end of the body. The received part may look valid
            but must be ignored, and no response is needed.
        OverflowError: the body is larger.
        TimeoutError: the body did not arrive in time.
    """
    length = dict(scope["headers"]).get(b"content-length", b"0")
    body = bytearray()
    more = length.isdigit() and int(length[:20]) <= size
    too_large = not more
    try:
        async with asyncio.timeout(seconds):
            while more and not too_large:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                more = message.get("more_body", False)
                too_large = len(body) > size
    except TimeoutError as error:
        raise TimeoutError(f"the body did not arrive within {seconds:g} s") from error
    if too_large:
        raise OverflowError(f"the body has more than {size} bytes")
    return bytes(body)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A receive function that returns a body that was already read, and then what follows it."""
    body_sent = False

    async def replayed() -> Message:
        nonlocal body_sent
        if body_sent:
            return await receive()
        body_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
