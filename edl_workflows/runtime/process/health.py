"""``/healthz``, ``/readyz`` and ``/metrics`` for probes and Prometheus: read-only, without a token."""

import contextlib
from collections.abc import Callable, Iterator

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from edl_workflows.runtime.process import http

log = structlog.get_logger(__name__)

HealthCheck = Callable[[], list[str]]
"""Returns the current problems; an empty result means healthy."""


class HealthServer:
    """Serves the endpoints until `close` is called.

    Args:
        host: address to listen on; ``0.0.0.0`` in a pod, since probes come from the node.
        port: port number; 0 for any free port, which `port` then contains.
        alive: returns problems that only a restart of the process solves.
        ready: returns what the process still waits for.
        registry: the metrics to serve.

    Raises:
        UnavailableError: the port is taken.
    """

    def __init__(
        self, host: str, port: int, alive: HealthCheck, ready: HealthCheck, registry: CollectorRegistry
    ) -> None:
        self._exit = contextlib.ExitStack()
        listen = http.ListenOptions(host, port, option="--metrics-port", stop_seconds=1)
        url = self._exit.enter_context(
            http.serve_in_thread(_application(alive, ready, registry), listen, "health")
        )
        self.port = int(url.rpartition(":")[2])

    def close(self) -> None:
        self._exit.close()


def _application(alive: HealthCheck, ready: HealthCheck, registry: CollectorRegistry) -> Starlette:
    checks = {"/healthz": alive, "/livez": alive, "/readyz": ready}

    async def check(request: Request) -> PlainTextResponse:
        problems = await run_in_threadpool(checks[request.url.path])  # a check may query a database
        return PlainTextResponse("\n".join(problems or ["ok"]) + "\n", 503 if problems else 200)

    async def metrics(_request: Request) -> Response:
        return Response(await run_in_threadpool(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

    async def absent(_request: Request, _error: Exception) -> PlainTextResponse:
        return PlainTextResponse("paths are /healthz, /readyz and /metrics\n", 404)

    routes = [*(Route(path, check) for path in checks), Route("/metrics", metrics)]
    return Starlette(routes=routes, exception_handlers={404: absent})


@contextlib.contextmanager
def serve_health(
    host: str, port: int | None, alive: HealthCheck, ready: HealthCheck, registry: CollectorRegistry
) -> Iterator[None]:
    """Run a `HealthServer` while the context lasts; do nothing if `port` is None."""
    if port is None:
        yield
        return
    health = HealthServer(host, port, alive, ready, registry)
    log.info("serving health and metrics", host=host, port=health.port)
    with contextlib.closing(health):
        yield
