"""HTTP/1.1 as uvicorn and httptools speak it, with bounds on what a client may send and on how long it may take.

httptools itself has no bound: it keeps a header until it is complete, however long that is. h11, uvicorn's other
parser, has one, but takes more than twice the CPU time for a request.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from edl_workflows.process.connections import Awaited, Connection, Connections

MAX_HEAD_BYTES = 64 * 2**10
"""Of a request's line and headers together; of its trailers; of what frames its body between two bytes of it."""
MAX_HEADERS = 256
MAX_PIPELINED = 16
"""Requests that may wait on a connection for the answer to another one."""
REQUEST_SECONDS = 10.0
"""For the TLS handshake and the first head together; for each further head, from its first byte."""
BODY_SECONDS = 60.0
"""For a body. Applications may allow less."""
READING_SECONDS, READING_BYTES = 300.0, 256 * 2**10
"""When no more of an answer fits into the buffers: the client reads so much of it in each such time, or all there is."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        connections: of the server.
        kwargs: of the base class.
    """

    def __init__(self, connections: Connections, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._connections = connections
        self._connection: Connection
        self._unread = 0
        self._head_bytes = 0
        self._too_large = False
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection was made, with TLS if there is any."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._connection = self._connections.of(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # answered as if it had not asked for another protocol
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
        """The first byte of a request."""
        super().on_message_begin()
        self._unread = self._head_bytes = 0
        if self._answering:
            self._connection.expect(Awaited.REQUEST, REQUEST_SECONDS)
        else:
            self._connections.set_idle(self._connection, REQUEST_SECONDS)

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
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
        """The end of a head: the request is answered, or waits for those before it."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError(f"more than {MAX_PIPELINED} requests wait for an answer")
        self._unread = 0
        self._connections.set_busy(self._connection)
        self._connection.expect(Awaited.BODY, BODY_SECONDS)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._unread = 0
        self._connection.received(Awaited.BODY)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The end of an answer."""
        if not self.pipeline:
            self._connections.set_idle(self._connection, self.timeout_keep_alive + REQUEST_SECONDS)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        self._watch_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has read."""
        self._stop_watching()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
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
