"""The DI server as a process: watches, the API, and endpoints for probes and Prometheus."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import structlog

from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.monitoring.servers import DI_ANSWERS
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process import http
from edl_workflows.runtime.process.health import serve_health
from edl_workflows.runtime.process.http import ListenOptions
from edl_workflows.runtime.process.metrics import ApiMetrics, make_counter
from edl_workflows.services.di_server.app import create_app
from edl_workflows.services.di_server.guard import Admission
from edl_workflows.services.di_server.service import DiService
from edl_workflows.services.di_server.watching import JobCaches

log = structlog.get_logger(__name__)


class DiServerMetrics(ApiMetrics):
    def __init__(self) -> None:
        super().__init__()
        self._answers = make_counter(DI_ANSWERS, self.registry)

    def answered(self, method: str, call: str, code: int) -> None:
        """Count an answer; see `CountAnswer`."""
        self._answers.labels(method, call, str(code)).inc()


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        namespaces: the namespaces whose jobs are served.
        host, port: where the API listens; port 0 for any free one.
        metrics_host: address of the health and metrics endpoints.
        metrics_port: their port; None for no endpoints.
        admission: rules for admitting requests.
    """

    namespaces: NamespaceSelection = field(default_factory=NamespaceSelection)
    host: str = "127.0.0.1"
    port: int = 8081
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    admission: Admission = field(default_factory=Admission)


class DiServer:
    """One server.

    Args:
        cluster: the API server.
        options: see `ServerOptions`.
    """

    def __init__(self, cluster: Cluster, options: ServerOptions) -> None:
        self.metrics = DiServerMetrics()
        self._options = options
        observed = cluster.observed_by(self.metrics.requested)
        self._watches = JobCaches(observed, options.namespaces)
        self._app = create_app(DiService(observed, self._watches), options.admission, self.metrics.answered)

    def waits_for(self) -> list[str]:
        """The resources that must be listed before requests can be answered; empty when ready."""
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
        """Serve while the context lasts. Yields the API's URL.

        Raises:
            UnavailableError: a port is taken.
        """
        options = self._options
        if not options.admission.require_token:
            log.warning("tokens are not required: whoever reaches the port may change every job")
        with serve_health(
            options.metrics_host, options.metrics_port, list, self.waits_for, self.metrics.registry
        ):
            self._watches.start()
            try:
                with http.serve_in_thread(
                    self._app, ListenOptions(options.host, options.port), "di server"
                ) as url:
                    log.info("DI server started", url=url, namespaces=str(options.namespaces))
                    yield url
            finally:
                self._watches.stop()
                log.info("DI server stopped")
