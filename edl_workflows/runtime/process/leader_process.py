"""The life cycle of a process with leader election: first it serves endpoints, then it waits for leadership,
then it works until it is stopped."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process.health import HealthCheck, serve_health
from edl_workflows.runtime.process.leader import Election, Elector, LeadershipLostError
from edl_workflows.runtime.process.metrics import ProcessMetrics


@dataclass(frozen=True)
class ProcessOptions:
    """Options that all these processes have.

    Attributes:
        election: the election; None to work without one, which is only safe if no second process can run.
        metrics_host: address of the health and metrics endpoints.
        metrics_port: port of these endpoints; None to leave them out.
    """

    election: Election | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None


class LeaderProcess:
    """The leadership and the endpoints of one process.

    Args:
        cluster: the cluster with the Lease. Requests to it are counted.
        options: see `ProcessOptions`.
        metrics: the metrics to serve.
        elector: makes this process's candidate.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProcessOptions,
        metrics: ProcessMetrics,
        elector: Callable[[Cluster, Election], Elector] = Elector,
    ) -> None:
        self._options = options
        self._metrics = metrics
        observed = cluster.observed_by(metrics.requested)
        self._elector = elector(observed, options.election) if options.election else None

    def run(
        self,
        stop: threading.Event,
        work: Callable[[threading.Event], None],
        *,
        alive: HealthCheck,
        ready: HealthCheck,
    ) -> None:
        """Serve the endpoints, wait for leadership, and work. At the end, release the lease and close the
        endpoints.

        Args:
            stop: ends the wait for leadership. `work` must watch it itself, with `keep`.
            work: called once, in this thread, when this process leads.
            alive: returns problems that only a restart of the process solves.
            ready: returns what a leader still waits for. A candidate that does not lead is always ready.

        Raises:
            LeadershipLostError: another process leads now; this one must exit.
            UnavailableError: the port of the endpoints is taken.
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
        """Keep the leadership in a thread while the context lasts, so that work in progress can be finished
        before another process takes over. A lost lease is not acquired again."""
        elector, done = self._elector, threading.Event()
        if elector is None or not elector.leading:
            yield
            return

        def renew() -> None:
            with suppress(LeadershipLostError):  # from then on, `guard` rejects all writes
                elector.keep(done)

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def guard(self) -> None:
        """Check that this process may write. Must be called before each write.

        Raises:
            LeadershipLostError: this process must not write any more.
        """
        if not self.leads:
            raise LeadershipLostError("this process no longer leads, so it writes nothing")

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return self._elector is None or self._elector.leading
