"""The controller as a process, and in a thread of another one (`edl local up`)."""

import signal
import threading
from dataclasses import dataclass, field

import structlog

from edl_workflows.controller.health import HealthServer
from edl_workflows.controller.leader import Election, Elector, LeadershipLostError
from edl_workflows.controller.manager import Manager, ManagerOptions
from edl_workflows.controller.metrics import Metrics
from edl_workflows.exceptions import EdlError
from edl_workflows.kube.connect import Cluster

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """How to run a controller.

    Attributes:
        manager: the loop's.
        election: None to lead without asking; right only where no second controller can run.
        metrics_host: address of the health and metrics endpoints.
        metrics_port: their port; None for no endpoints.
    """

    manager: ManagerOptions = field(default_factory=ManagerOptions)
    election: Election | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None


class Controller:
    """A manager with its leadership and its endpoints; `run` is its whole life.

    Args:
        cluster: the API server.
        options: see there.
    """

    def __init__(self, cluster: Cluster, options: RunOptions) -> None:
        self._options = options
        self.metrics = Metrics()
        self._elector = (
            Elector(cluster.observed_by(self.metrics.requested), options.election)
            if options.election is not None
            else None
        )
        self.manager = Manager(cluster, options.manager, self.metrics, self._guard)

    def run(self, stop: threading.Event) -> None:
        """Lead and reconcile until `stop` is set.

        Raises:
            LeadershipLostError: another process leads now; this one must end.
            UnavailableError: the endpoints' port is taken.
        """
        options = self._options
        health = None
        if options.metrics_port is not None:
            health = HealthServer(
                options.metrics_host,
                options.metrics_port,
                self.manager.problems,
                self._waits_for,
                self.metrics.registry,
            )
            log.info("health and metrics", host=options.metrics_host, port=health.port)
        try:
            self._lead(stop)
        finally:
            if health is not None:
                health.close()

    def _lead(self, stop: threading.Event) -> None:
        if self._elector is not None and not self._elector.acquire(stop):
            return
        self.metrics.led(True)
        self.manager.start()
        log.info("controller started", namespace=self._options.manager.namespace or "(all)")
        try:
            if self._elector is not None:
                self._elector.keep(stop)
            else:
                stop.wait()
        finally:
            self.metrics.led(False)
            self.manager.stop()
            if self._elector is not None:
                self._elector.release()
            log.info("controller stopped")

    def _guard(self) -> None:
        if self._elector is not None and not self._elector.leading:
            raise LeadershipLostError("no leader any more: nothing is written")

    def _waits_for(self) -> list[str]:
        """A candidate that does not lead is ready to take over."""
        leads = self._elector is None or self._elector.leading
        return self.manager.waits_for() if leads else []


@dataclass
class RunningController:
    """A controller that runs in a daemon thread from its construction on; see `run_in_thread`.

    Attributes:
        controller: for its manager and metrics.
        error: why it ended by itself; None while it runs or after `stop`.
    """

    controller: Controller
    error: EdlError | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def wait_ready(self, seconds: float) -> bool:
        """Wait until everything is listed and decisions are made; whether that came in time."""
        return self.controller.manager.world.wait_synced(seconds)

    def stop(self) -> None:
        """End it and wait for the decisions in hand."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.controller.run(self._stop)
        except EdlError as error:
            self.error = error
            log.error("controller ended", error=str(error))  # noqa: TRY400 - the message says it all


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop


def run_in_thread(cluster: Cluster, options: RunOptions | None = None) -> RunningController:
    """Start a controller in a daemon thread of this process.

    Args:
        cluster: the API server.
        options: default: all namespaces, no election (the embedded cluster has one controller), no endpoints.
    """
    return RunningController(Controller(cluster, options or RunOptions()))
