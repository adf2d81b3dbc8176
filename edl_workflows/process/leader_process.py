"""The life of a process that leads: endpoints first, then leadership, then its work until the end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from edl_workflows.kube.connect import Cluster
from edl_workflows.process.health import HealthCheck, serve_health
from edl_workflows.process.leader import Election, Elector, LeadershipLostError
from edl_workflows.process.metrics import ProcessMetrics


@dataclass(frozen=True)
class ProcessOptions:
    """Options of every such process.

    Attributes:
        election: None to lead without an election; correct only where no second process can run.
        metrics_host: address of the health and metrics endpoints.
        metrics_port: their port; None for no endpoints.
    """

    election: Election | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None


class LeaderProcess:
    """Leadership and endpoints of one process.

    Args:
        cluster: that holds the Lease; requests to it are counted.
        options: see `ProcessOptions`.
        metrics: what the endpoint shows.
    """

    def __init__(self, cluster: Cluster, options: ProcessOptions, metrics: ProcessMetrics) -> None:
        self._options = options
        self._metrics = metrics
        observed = cluster.observed_by(metrics.requested)
        self._elector = Elector(observed, options.election) if options.election else None

    def run(
        self,
        stop: threading.Event,
        work: Callable[[threading.Event], None],
        *,
        alive: HealthCheck,
        ready: HealthCheck,
    ) -> None:
        """Wait for leadership, then work; release both at the end.

        Args:
            stop: ends the wait; the work watches it itself, with `keep`.
            work: called once, in this thread, when this process leads.
            alive: problems that only a restart of the process cures.
            ready: what a leader still waits for. A candidate that does not lead is ready to take over.

        Raises:
            LeadershipLostError: another process leads now; this one must exit.
            UnavailableError: the endpoints' port is taken.
        """
        host, port, registry = self._options.metrics_host, self._options.metrics_port, self._metrics.registry
        with serve_health(host, port, alive, lambda: ready() if self.leads else [], registry):
            if self._elector is not None and not self._elector.acquire(stop):
                return
            self._metrics.led(True)
            try:
                work(stop)
            finally:
                self._metrics.led(False)
                if self._elector is not None:
                    self._elector.release()

    def keep(self, stop: threading.Event) -> None:
        """Keep the leadership until `stop` is set.

        Raises:
            LeadershipLostError: no renewal succeeded in time, or another process leads.
        """
        if self._elector is not None:
            self._elector.keep(stop)
        else:
            stop.wait()

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Keep the leadership, in a thread, while work in progress is finished, so that no other process
        starts beside it. A lost lease stays lost."""
        elector, done = self._elector, threading.Event()
        if elector is None or not elector.leading:
            yield
            return

        def renew() -> None:
            with suppress(LeadershipLostError):  # the guard refuses every write from then on
                elector.keep(done)

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def guard(self) -> None:
        """Call this before each write.

        Raises:
            LeadershipLostError: this process may not write any more.
        """
        if not self.leads:
            raise LeadershipLostError("no leader any more: nothing is written")

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return self._elector is None or self._elector.leading
