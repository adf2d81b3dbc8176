"""Runs the controller as a process, or in a thread of another process (`edl local up`)."""

import threading
from dataclasses import dataclass, field

import structlog

from edl_workflows.core.exceptions import EdlError
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process.leader_process import LeaderProcess, ProcessOptions
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RunOptions(ProcessOptions):
    """How to run a controller.

    Attributes:
        manager: options of the loop.
    """

    manager: ManagerOptions = field(default_factory=ManagerOptions)


class Controller:
    """A manager with leader election and endpoints; `run` lasts from its start to its end.

    Args:
        cluster: the API server.
        options: see `RunOptions`.
    """

    def __init__(self, cluster: Cluster, options: RunOptions) -> None:
        self._options = options
        self.metrics = ControllerMetrics()
        self._process = LeaderProcess(cluster, options, self.metrics)
        self.manager = Manager(cluster, options.manager, self.metrics, self._process.guard)

    def run(self, stop: threading.Event) -> None:
        """Lead and reconcile until `stop` is set.

        Raises:
            LeadershipLostError: another process leads now; this one must end.
            UnavailableError: the endpoints' port is taken.
        """
        self._process.run(stop, self._reconcile, alive=self.manager.problems, ready=self.manager.waits_for)

    def _reconcile(self, stop: threading.Event) -> None:
        self.manager.start()
        log.info("controller started", namespace=self._options.manager.namespace or "(all)")
        try:
            self._process.keep(stop)
        finally:
            with self._process.renewing():
                self.manager.stop()
            log.info("controller stopped")


@dataclass
class RunningController:
    """A controller that runs in a daemon thread from its construction on; see `run_in_thread`.

    Attributes:
        controller: gives access to its manager and metrics.
        error: why it ended by itself; None while it runs, and after `stop`.
    """

    controller: Controller
    error: EdlError | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def wait_ready(self, seconds: float) -> bool:
        """Wait until everything is listed, so that decisions are made. Returns False on time-out."""
        return self.controller.manager.world.wait_synced(seconds)

    def stop(self) -> None:
        """Stop it, and wait for the decisions in progress."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.controller.run(self._stop)
        except EdlError as error:
            self.error = error
            log.error("controller ended", error=str(error))  # noqa: TRY400 - the message says it all


def run_in_thread(cluster: Cluster, options: RunOptions | None = None) -> RunningController:
    """Start a controller in a daemon thread of this process.

    Args:
        cluster: the API server.
        options: default: all namespaces, no election (the embedded cluster has one controller), no endpoints.
    """
    return RunningController(Controller(cluster, options or RunOptions()))
