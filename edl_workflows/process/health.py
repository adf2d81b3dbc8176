"""``/healthz``, ``/readyz`` and ``/metrics`` over HTTP, for probes and for Prometheus. Reads only; no token."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from edl_workflows.exceptions import UnavailableError

log = structlog.get_logger(__name__)

Check = Callable[[], list[str]]
"""What is wrong at the moment; empty for nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds that a client may take to send its request

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Probes every few seconds are no news."""


class HealthServer:
    """Serves until `close`.

    Args:
        host: address to listen on; ``0.0.0.0`` in a pod, since probes come from the node.
        port: 0 for any free one, see `port`.
        alive: problems that only a restart of the process cures.
        ready: what the process still waits for.
        registry: metrics to show.

    Raises:
        UnavailableError: the port is taken.
    """

    def __init__(self, host: str, port: int, alive: Check, ready: Check, registry: CollectorRegistry) -> None:
        self._checks = {"/healthz": alive, "/livez": alive, "/readyz": ready}
        self._metrics = make_wsgi_app(registry)
        try:
            self._server = make_server(host, port, self._app, _Server, _Handler)
        except OSError as error:
            raise UnavailableError(
                f"can't listen on {host}:{port}: {error.strerror or error}; choose another with --metrics-port"
            ) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            metrics: Iterable[bytes] = self._metrics(environ, start_response)
            return metrics
        check = self._checks.get(path)
        if check is None:
            return _answer(start_response, "404 Not Found", "known are /healthz, /readyz and /metrics\n")
        problems = check()
        if problems:
            return _answer(start_response, "503 Service Unavailable", "\n".join(problems) + "\n")
        return _answer(start_response, "200 OK", "ok\n")


@contextlib.contextmanager
def endpoints(
    host: str, port: int | None, alive: Check, ready: Check, registry: CollectorRegistry
) -> Iterator[None]:
    """A `HealthServer` while the context lasts; none where `port` is None."""
    if port is None:
        yield
        return
    health = HealthServer(host, port, alive, ready, registry)
    log.info("health and metrics", host=host, port=health.port)
    with contextlib.closing(health):
        yield


def _answer(start_response: Any, status: str, text: str) -> Iterable[bytes]:
    body = text.encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]
