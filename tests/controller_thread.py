"""A controller in a thread of the tests' process."""

import threading
from dataclasses import dataclass, field

import structlog

from edl_workflows.core.exceptions import EdlError
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.controller.run import Controller, RunOptions

log = structlog.get_logger(__name__)


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
