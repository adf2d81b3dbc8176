"""How the roles of the TrainingJob example communicate: by HTTP POST with binary
bodies. A request is repeated while its peer is being replaced."""

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[bytes], bytes]

PATIENCE_SECONDS = 120.0
"""How long a role waits for a lost peer, whose replacement needs a new pod."""
PAUSE_SECONDS = 0.2


def serve(answers: Mapping[str, Answer]) -> ThreadingHTTPServer:
    """A server for these paths, on the port of this pod's own address;
    ``serve_forever`` runs it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = answers.get(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            content = b"" if answer is None else answer(body)
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, because there are many requests."""

    port = int(os.environ["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[2])
    return ThreadingHTTPServer(("", port), Handler)


def ask(address: str, path: str, body: bytes = b"") -> bytes:
    """The response of the role at an address.

    Raises:
        OSError: there was no response within `PATIENCE_SECONDS`.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(
                f"http://{address}{path}", data=body, timeout=10
            ) as response:
                answer: bytes = response.read()
                return answer
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)
