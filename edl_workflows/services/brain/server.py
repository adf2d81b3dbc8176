"""The process of the Brain: the store, the API with its web page, the cluster monitor, the removal of old
rows, and endpoints for probes and Prometheus."""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process import http
from edl_workflows.runtime.process.health import serve_health
from edl_workflows.runtime.process.http import ListenOptions
from edl_workflows.services.brain.app import create_app
from edl_workflows.services.brain.auth import TokenFile
from edl_workflows.services.brain.limits import CALLS_PER_SECOND, TenantLimits
from edl_workflows.services.brain.metrics import BrainMetrics
from edl_workflows.services.brain.monitor import ClusterMonitor, MonitorOptions
from edl_workflows.services.brain.optimizer_process import OptimizerProcess
from edl_workflows.services.brain.service import BrainApi
from edl_workflows.services.brain.store.retention import Retention, RetentionOptions
from edl_workflows.services.brain.store.store import BrainStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class BrainOptions:
    """Options of a Brain.

    Attributes:
        database_url: see `database.parse_url`.
        tokens_file: the tenants' tokens; None: every client is admitted.
        allowed_hosts: accepted values of ``Host`` without tokens, see `BrainGuard`.
        host, port: where the API listens; port 0 for any free one.
        certificate, key: PEM files, for HTTPS.
        metrics_host: address of the health and metrics endpoints.
        metrics_port: port of these endpoints; None to leave them out.
        retention: which rows are kept.
        monitor: options of the cluster monitor; None to run without it.
        tenant_calls_per_second: limit of the calls of each tenant.
    """

    database_url: str
    tokens_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = names.BRAIN_PORT
    certificate: Path | None = None
    key: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    retention: RetentionOptions = field(default_factory=RetentionOptions)
    monitor: MonitorOptions | None = None
    tenant_calls_per_second: float = CALLS_PER_SECOND


class BrainServer:
    """One Brain. Several may share a PostgreSQL database.

    Args:
        options: see `BrainOptions`.
        cluster: the API server that the monitor watches.
        set_up_process: called first in the optimizer process, for example to set up logging; it is pickled.

    Raises:
        InvalidError: a file or the database's URL cannot be used.
        UnavailableError: the database does not answer.
    """

    def __init__(
        self,
        options: BrainOptions,
        cluster: Cluster | None = None,
        set_up_process: Callable[[], None] | None = None,
    ) -> None:
        self.metrics = BrainMetrics()
        self._options = options
        for file in (options.certificate, options.key):
            if file is not None and not file.is_file():
                raise InvalidError(f"{file}: no such file; HTTPS needs a certificate and its key")
        self._tokens = TokenFile(options.tokens_file) if options.tokens_file is not None else None
        self.store = BrainStore(options.database_url)
        self.optimizer = OptimizerProcess(options.database_url, set_up_process)
        self._retention = Retention(self.store, options.retention)
        self._monitor: ClusterMonitor | None = None
        if options.monitor is not None and cluster is not None:
            observed = cluster.observed_by(self.metrics.requested)
            self._monitor = ClusterMonitor(observed, self.store, options.monitor)
        self.metrics.watch(lambda: self.store.waiting)

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            UnavailableError: a port is taken, or the optimizer process does not start.
        """
        self.optimizer.start()  # early, because it takes a moment
        with self.serving():
            # Exclude all objects that exist now from garbage collection, which would otherwise stop all
            # responses for 0.15 s.
            gc.freeze()
            stop.wait()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Serve while the context lasts. Yields the API's URL. The store is closed at the end.

        Raises:
            UnavailableError: a port is taken.
        """
        options, registry = self._options, self.metrics.registry
        if self._tokens is None:
            log.warning("tokens are not required: every client that reaches the port may read and write all")
        with (
            contextlib.closing(self.store),
            contextlib.closing(self.optimizer),
            serve_health(
                options.metrics_host, options.metrics_port, self._problems, self._waits_for, registry
            ),
            self._listening() as url,
        ):
            self._retention.start()
            if self._monitor is not None:
                self._monitor.start()
            log.info("Brain started", url=url, database=self.store.engine.dialect.name)
            try:
                yield url
            finally:
                if self._monitor is not None:
                    self._monitor.stop()
                self._retention.stop()
        log.info("Brain stopped")

    def _listening(self) -> contextlib.AbstractContextManager[str]:
        options = self._options
        app = create_app(
            BrainApi(
                self.store,
                self.optimizer,
                limits=TenantLimits(calls_per_second=options.tenant_calls_per_second),
            ),
            self._tokens,
            self.metrics.answered,
            monitored=self._monitor is not None,
            allowed_hosts=options.allowed_hosts,
        )
        # Longer than the interval of masters' reports, so that their connections stay open.
        listen = ListenOptions(options.host, options.port, options.certificate, options.key, keep_alive=60)
        return http.serve_in_thread(app, listen, "brain")

    def _problems(self) -> list[str]:
        return self._monitor.problems() if self._monitor is not None else []

    def _waits_for(self) -> list[str]:
        try:
            self.store.check()
        except EdlError as error:
            return [str(error)]
        return []
