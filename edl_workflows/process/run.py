"""The life of a process around its work: endpoints first, then leadership, then the work until the end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from edl_workflows.kube.connect import Cluster
from edl_workflows.process.health import Check, endpoints
from edl_workflows.process.leader import Election, Elector, LeadershipLostError
from edl_workflows.process.metrics import ProcessMetrics


@dataclass(frozen=True)
class ProcessOptions:
    """What every process can be told.

    Attributes:
        election: None to lead without asking; right only where no second process can run.
        metrics_host: address of the health and metrics endpoints.
        metrics_port: their port; None for no endpoints.
    """

    election: Election | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None


class Process:
    """Leadership and endpoints.

    Args:
        cluster: where the Lease lives; its requests are counted.
        options: see there.
        metrics: what the endpoint shows.
    """

    def __init__(self, cluster: Cluster, options: ProcessOptions, metrics: ProcessMetrics) -> None:
        self._options = options
        self._metrics = metrics
        observed = cluster.observed_by(metrics.requested)
        self._elector = Elector(observed, options.election) if options.election else None

    def run(
        self, stop: threading.Event, work: Callable[[threading.Event], None], *, alive: Check, ready: Check
    ) -> None:
        """Wait for leadership, then work; give both back at the end.

        Args:
            stop: ends the wait; the work sees to it itself, by `keep`.
            work: called once, in this thread, when this process leads.
            alive: problems that only a restart of the process cures.
            ready: what a leader still waits for. A candidate that does not lead is ready to take over.

        Raises:
            LeadershipLostError: another process leads now; this one must end.
            UnavailableError: the endpoints' port is taken.
        """
        host, port, registry = self._options.metrics_host, self._options.metrics_port, self._metrics.registry
        with endpoints(host, port, alive, lambda: ready() if self.leads else [], registry):
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
        """Go on leading until `stop` is set.

        Raises:
            LeadershipLostError: no renewal succeeded in time, or another process leads.
        """
        if self._elector is not None:
            self._elector.keep(stop)
        else:
            stop.wait()

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Go on leading, in a thread, while work in hand is finished: nobody else begins beside it. A lease that is lost
        stays lost."""
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
        """To be called before each write.

        Raises:
            LeadershipLostError: this process may not write any more.
        """
        if not self.leads:
            raise LeadershipLostError("no leader any more: nothing is written")

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return self._elector is None or self._elector.leading
