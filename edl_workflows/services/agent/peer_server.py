"""HTTP server with which an agent serves its newest copy of the model to another node's agent
(`edl_workflows.services.agent.peers`).

There are two requests, both with the job's token. ``GET /v1/snapshots/newest?unless=<name>&wait=<seconds>``
returns the header of the newest complete copy, or 204 if that is still copy `unless` after `wait` seconds.
``GET /v1/snapshots/<name>`` returns a copy's bytes. Copies that the node holds for another node are also
served, so that the replacement of a lost chief gets its predecessor's copy.
"""

import contextlib
import hmac
import re
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from edl_workflows.training.checkpoints.snapshots import ModelSnapshot, SnapshotFolder

MAX_QUESTIONS = 8
"""Requests that are answered concurrently."""
MAX_SILENT = 32
"""Limit for connections that have not sent a valid token yet. Beyond it, each new connection replaces the
oldest one."""
MAX_HEAD_BYTES = 16 * 2**10
HEAD_SECONDS = 5.0
"""Time for a request to arrive."""
MAX_WAIT_SECONDS = 30.0
IDLE_SECONDS = 10.0
"""Time after which a client that does not read is disconnected."""
LOOK_SECONDS = 0.1
CHUNK_BYTES = 4 * 2**20
_COPY = re.compile(r"^/v1/snapshots/(checkpoint-[0-9a-f-]{1,64})$")


class PeerServer(ThreadingTCPServer):
    """Serves a node's copies in a separate thread until closed.

    Args:
        folder: folder of the copies.
        address: address to listen on.
        token: token of the job.

    Raises:
        OSError: the address is not available.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, folder: SnapshotFolder, address: tuple[str, int], token: str) -> None:
        self.folders = (folder, folder.of_peer)
        self.authorization = f"Bearer {token}".encode()
        self.closing = threading.Event()
        self._free = threading.BoundedSemaphore(MAX_QUESTIONS)
        self._silent: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        self._thread = threading.Thread(target=self.serve_forever, name="peer-server", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    @property
    def newest(self) -> ModelSnapshot | None:
        """The header of the newest complete copy."""
        copies = [copy for folder in self.folders for copy in folder.whole()]
        return max(copies, key=lambda copy: (copy.version, copy.step), default=None)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[memoryview | None]:
        """A context with the bytes of a copy; None if the copy was overwritten."""
        for folder in self.folders:
            for copy in folder.whole():
                if copy.name == name:
                    with folder.reading(copy.number) as block:
                        yield block
                    return
        yield None

    def close(self) -> None:
        """Stop; requests that wait for a newer copy are answered at once."""
        self.closing.set()
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its own thread; drop the oldest silent connections beyond the limit."""
        with self._lock:
            while len(self._silent) >= MAX_SILENT:
                self._drop(next(iter(self._silent)))
            self._silent[request] = time.monotonic() + HEAD_SECONDS
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its thread, and forget it afterwards."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._silent.pop(request, None)

    def service_actions(self) -> None:
        """Disconnect clients that sent no request in time; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for request in [request for request, deadline in self._silent.items() if deadline < now]:
                self._drop(request)

    def _drop(self, request: socket.socket) -> None:
        del self._silent[request]
        with contextlib.suppress(OSError):  # already disconnected
            request.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def answering(self, request: socket.socket) -> Iterator[bool]:
        """Admit a request with a valid token. Yields False if too many are being answered."""
        with self._lock:
            self._silent.pop(request, None)
        if not self._free.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _BoundedHead:
    """The header lines of a request, up to a limit."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = MAX_HEAD_BYTES
        self.close = file.close

    def readline(self, limit: int = -1) -> bytes:
        """The next line; empty at the end and beyond the limit."""
        most = self._left if limit < 0 else min(limit, self._left)
        line: bytes = self._file.readline(most)
        self._left -= len(line)
        return line


class _Handler(BaseHTTPRequestHandler):
    server: PeerServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile = _BoundedHead(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(authorization, self.server.authorization):
            self._answer(HTTPStatus.UNAUTHORIZED)
            return
        with self.server.answering(self.connection) as admitted:
            if admitted:
                self._route(urlsplit(self.path))
            else:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE)

    def _route(self, url: SplitResult) -> None:
        if url.path == "/v1/snapshots/newest":
            query = parse_qs(url.query)
            self._newest(query.get("unless", [""])[0], _seconds(query.get("wait", ["0"])[0]))
        elif match := _COPY.match(url.path):
            self._copy(match[1])
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        self.send_header("Connection", "close")  # one request per connection
        super().end_headers()

    def _newest(self, unless: str, wait: float) -> None:
        deadline = time.monotonic() + wait
        while True:
            newest = self.server.newest
            if newest is not None and newest.name != unless:
                self._answer(HTTPStatus.OK, newest.model_dump_json().encode())
                return
            if time.monotonic() >= deadline or self.server.closing.wait(LOOK_SECONDS):
                self._answer(HTTPStatus.NO_CONTENT)
                return

    def _copy(self, name: str) -> None:
        with self.server.reading(name) as block:
            if block is None:
                self._answer(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(block)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client disconnected
                for start in range(0, len(block), CHUNK_BYTES):
                    self.wfile.write(block[start : start + CHUNK_BYTES])

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Do nothing: requests are not logged."""

    def version_string(self) -> str:
        return "edl-agent"


def _seconds(text: str) -> float:
    try:
        wait = float(text)
    except ValueError:
        return 0.0
    return min(wait, MAX_WAIT_SECONDS) if wait > 0 else 0.0  # 0 for NaN, too
