"""uvicorn's HTTP/1.1 protocol on httptools, with limits on what a client may send and how long it may take.

httptools itself has no limits: it buffers a header of any length until it is complete. h11, uvicorn's other
parser, has limits but takes more than twice the CPU time per request.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from edl_workflows.runtime.process.connections import AwaitedInput, Connection, Connections

MAX_HEAD_BYTES = 64 * 2**10
"""Most bytes of the request line and all headers, of trailers, and of the chunk framing between two bytes of
a body."""
MAX_HEADERS = 256
MAX_PIPELINED = 16
"""Most pipelined requests that may wait on a connection while another one is processed."""
REQUEST_SECONDS = 10.0
"""Seconds for the TLS handshake and the first request head together, and for each later head, counted from
its first byte."""
BODY_SECONDS = 60.0
"""Seconds for a body. Applications may allow less."""
READING_SECONDS, READING_BYTES = 300.0, 256 * 2**10
"""While the write buffers are full, the client must read this many bytes (or all that is buffered) within
this many seconds."""


class JoiningTransport:
    """A transport that sends the head of a response together with the first part of its body, if that is
    written in the same turn of the event loop. uvicorn writes them one after the other, which costs the
    server a system call and the client a wake-up a response.

    Args:
        transport: the connection's.
        loop: its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, content: bytes) -> None:
        if not self._head and content.startswith(b"HTTP/1."):
            self._head = content
            self._loop.call_soon(self.flush)
        else:
            head, self._head = self._head, b""
            self._transport.write(head + content)

    def flush(self) -> None:
        """Send a head whose body has not been written."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedHttpProtocol(HttpToolsProtocol):
    """The protocol of one connection."""

    def __init__(self, connections: Connections, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._connections = connections
        self._connection: Connection
        self._unread = 0
        self._head_bytes = 0
        self._too_large = False
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        joining = JoiningTransport(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", joining))
        self._connection = self._connections.of(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # the upgrade is ignored and the request answered normally
        except httptools.HttpParserError:
            self._refuse(431 if self._too_large else 400)
            return
        if self._unread > MAX_HEAD_BYTES:
            self._refuse(431)

    @property
    def _answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _refuse(self, status: int) -> None:
        if not self._answering:
            self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unread = self._head_bytes = 0
        if self._answering:
            self._connection.expect(AwaitedInput.REQUEST, REQUEST_SECONDS)
        else:
            self._connections.set_idle(self._connection, REQUEST_SECONDS)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for trailers, too."""
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            self._too_large = True
            raise ValueError(f"more than {MAX_HEADERS} headers")
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError(f"the head has more than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """Process the request now, or after earlier requests of the connection."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError(f"more than {MAX_PIPELINED} requests wait for an answer")
        self._unread = 0
        self._connections.set_busy(self._connection)
        self._connection.expect(AwaitedInput.BODY, BODY_SECONDS)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self._connection.received(AwaitedInput.BODY)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._connections.set_idle(self._connection, self.timeout_keep_alive + REQUEST_SECONDS)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Called when the client reads more slowly than the server writes."""
        self._watch_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(READING_SECONDS, self._look_at_reading, unread)

    def _look_at_reading(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() > unread - READING_BYTES:
            self.transport.abort()
        else:
            self._watch_reading()

    def _stop_watching(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
