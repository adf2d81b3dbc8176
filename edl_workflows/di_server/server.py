"""The DI server as a process: watches, the API, and endpoints for probes and Prometheus."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import structlog
import uvicorn

from edl_workflows.di_server.app import create_app
from edl_workflows.di_server.guard import Admission
from edl_workflows.di_server.metrics import Metrics
from edl_workflows.di_server.service import Service
from edl_workflows.di_server.watching import Watches
from edl_workflows.exceptions import UnavailableError
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import ALL_NAMESPACES
from edl_workflows.process.health import HealthServer

log = structlog.get_logger(__name__)

STOP_SECONDS = 5
"""For answers in hand; long polls are cut then."""


@dataclass(frozen=True)
class ServerOptions:
    """How to run a server.

    Attributes:
        namespace: whose jobs to serve, or `ALL_NAMESPACES`.
        host, port: where the API listens; port 0 for any free one.
        metrics_host: address of the health and metrics endpoints.
        metrics_port: their port; None for no endpoints.
        admission: who is let in.
    """

    namespace: str = ALL_NAMESPACES
    host: str = "127.0.0.1"
    port: int = 8081
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    admission: Admission = field(default_factory=Admission)


class DiServer:
    """One server.

    Args:
        cluster: the API server.
        options: see there.
    """

    def __init__(self, cluster: Cluster, options: ServerOptions) -> None:
        self.metrics = Metrics()
        self._options = options
        observed = cluster.observed_by(self.metrics.requested)
        self._watches = Watches(observed, options.namespace)
        app = create_app(Service(observed, self._watches), options.admission, self.metrics.answered)
        self._http = _Http(
            uvicorn.Config(
                app,
                host=options.host,
                port=options.port,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )

    def waits_for(self) -> list[str]:
        """What must be there before questions are answered; empty when ready."""
        return self._watches.waits_for()

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            UnavailableError: a port is taken.
        """
        with self.serving():
            stop.wait()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Serve while the context lasts; its value is the API's URL.

        Raises:
            UnavailableError: a port is taken.
        """
        options = self._options
        if not options.admission.require_token:
            log.warning("tokens are not required: whoever reaches the port may change every job")
        with self._endpoints():
            self._watches.start()
            thread = threading.Thread(target=self._serve, name="di server", daemon=True)
            thread.start()
            try:
                while not self._http.started:
                    if not thread.is_alive():
                        raise UnavailableError(
                            f"can't listen on {options.host}:{options.port}; choose another with --port"
                        )
                    thread.join(0.01)
                log.info("DI server started", url=self._http.url, namespace=options.namespace or "(all)")
                yield self._http.url
            finally:
                self._http.should_exit = True
                thread.join(STOP_SECONDS + 5)
                self._watches.stop()
                log.info("DI server stopped")

    def _serve(self) -> None:
        with contextlib.suppress(SystemExit):  # uvicorn's way to say that it can't listen
            self._http.run()

    @contextlib.contextmanager
    def _endpoints(self) -> Iterator[None]:
        host, port = self._options.metrics_host, self._options.metrics_port
        if port is None:
            yield
            return
        health = HealthServer(host, port, list, self.waits_for, self.metrics.registry)
        log.info("health and metrics", host=host, port=health.port)
        try:
            yield
        finally:
            health.close()


class _Http(uvicorn.Server):
    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"
