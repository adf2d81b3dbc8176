"""An HTTP API beside the process's other work: uvicorn in a thread of its own, and bodies of requests read whole."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope

from edl_workflows.exceptions import UnavailableError

STOP_SECONDS = 5
"""For answers in hand; longer ones, as long polls, are cut then."""


@dataclass(frozen=True)
class Listen:
    """Where an API listens.

    Attributes:
        port: 0 for any free one.
        certificate, key: PEM files, for HTTPS.
        keep_alive: seconds that a connection may be idle.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    keep_alive: int = 5


@contextlib.contextmanager
def serving(app: ASGIApp, listen: Listen, name: str) -> Iterator[str]:
    """Serve while the context lasts; its value is the API's URL.

    Args:
        app: what answers.
        listen: where.
        name: of the thread.

    Raises:
        UnavailableError: the port is taken.
    """
    http = _Http(
        uvicorn.Config(
            app,
            host=listen.host,
            port=listen.port,
            ssl_certfile=listen.certificate,
            ssl_keyfile=listen.key,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=listen.keep_alive,
        )
    )
    thread = threading.Thread(target=http.run_until_told, name=name, daemon=True)
    thread.start()
    try:
        while not http.started:
            if not thread.is_alive():
                raise UnavailableError(
                    f"can't listen on {listen.host}:{listen.port}; choose another with --port"
                )
            thread.join(0.01)
        yield http.url
    finally:
        http.should_exit = True
        thread.join(STOP_SECONDS + 5)


class _Http(uvicorn.Server):
    def run_until_told(self) -> None:
        """Serve in this thread."""
        with contextlib.suppress(SystemExit):  # uvicorn's way to say that it can't listen
            self.run()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{'https' if self.config.is_ssl else 'http'}://{host}:{port}"


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
