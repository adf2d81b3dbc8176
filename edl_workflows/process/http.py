"""How every process here serves HTTP: uvicorn with bounded connections, and bodies of requests read whole."""

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

from edl_workflows.exceptions import UnavailableError
from edl_workflows.process.connections import ACCEPTED_IN_A_TURN, Connections, connection_limit, listen
from edl_workflows.process.http_protocol import REQUEST_SECONDS, BoundedHttpProtocol
from edl_workflows.process.log_limit import limit_server_logs

STOP_SECONDS = 5
"""For answers in hand; longer ones, as long polls, are cut then."""
_TICKS_A_SECOND = 10  # uvicorn's


@dataclass(frozen=True)
class Listen:
    """Where an API listens.

    Attributes:
        port: 0 for any free one.
        certificate, key: PEM files, for HTTPS.
        keep_alive: seconds that a connection may be idle.
        stop_seconds: for answers in hand when it stops.
        option: of the command line, that chooses the port.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    keep_alive: int = 5
    stop_seconds: int = STOP_SECONDS
    option: str = "--port"


class HttpServer(uvicorn.Server):
    """A server of one application; `serve` runs it in asyncio's own event loop until ``should_exit`` is set.

    Its connections are bounded in number (see `edl_workflows.process.connections`), in what they send and in the time that
    they take (see `edl_workflows.process.http_protocol`). uvloop accepts connections by itself, without these bounds.
    Signals are the process's matter.

    Args:
        app: what answers.
        listen_at: where.

    Raises:
        UnavailableError: the port is taken.
    """

    def __init__(self, app: ASGIApp, listen_at: Listen) -> None:
        self.connections = Connections(connection_limit())
        protocol = functools.partial(BoundedHttpProtocol, self.connections)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", protocol),
                ws="none",  # a WebSocket handshake is a request like others
                backlog=ACCEPTED_IN_A_TURN,
                ssl_certfile=listen_at.certificate,
                ssl_keyfile=listen_at.key,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=listen_at.stop_seconds,
                timeout_keep_alive=listen_at.keep_alive,
            )
        )
        limit_server_logs()
        try:
            self._listeners = listen(listen_at.host, listen_at.port, self.connections, REQUEST_SECONDS)
        except OSError as error:
            raise UnavailableError(
                f"can't listen on {listen_at.host}:{listen_at.port}: {error.strerror or error}; "
                f"choose another with {listen_at.option}"
            ) from error

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._listeners[0].getsockname()[:2]
        return f"{'https' if self.config.is_ssl else 'http'}://{host}:{port}"

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        del sockets
        await super().serve(list(self._listeners))

    async def on_tick(self, counter: int) -> bool:
        """Uvicorn calls it ten times a second; True: stop."""
        if counter % _TICKS_A_SECOND == 0:
            self.connections.drop_late()
        return await super().on_tick(counter)

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Capture none."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Give up the port, if it never served."""
        for listener in self._listeners:
            listener.close()


@contextlib.contextmanager
def serving(app: ASGIApp, listen_at: Listen, name: str) -> Iterator[str]:
    """Serve in a thread while the context lasts; its value is the API's URL.

    Args:
        app: what answers.
        listen_at: where.
        name: of the thread.

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
                raise UnavailableError(f"the {name} ended while it started; its log says why")
            thread.join(0.01)
        yield url
    finally:
        http.should_exit = True
        thread.join(listen_at.stop_seconds + 5)
        http.close()


async def read_body(scope: Scope, receive: Receive, size: int, seconds: float) -> bytes:
    """The whole body of a request.

    Args:
        scope: the request's.
        receive: the request's.
        size: bytes that it may have.
        seconds: for it to arrive.

    Raises:
        ClientDisconnect: the client went away before the body's end. What had arrived may be valid by itself, and is not to
            be acted on. Nobody is left to be answered.
        OverflowError: it is larger.
        TimeoutError: it did not arrive in time.
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
    """A `receive` that gives the body that was read, and then what comes after it."""
    told = False

    async def replayed() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
