"""The controller's Prometheus metrics. A repeated API request counts each time, so failures stand beside successes."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from edl_workflows.kube.connect import RequestRecord

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one manager, in a registry of its own.

    Args:
        registry: where they are registered; default a new one.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._decisions = Counter(
            "edl_controller_reconcile",
            "Decisions by kind and result (success, conflict, unavailable, error, defect).",
            ["kind", "result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "edl_controller_reconcile_seconds",
            "Time of one object's decision with its writes.",
            ["kind"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._requests = Counter(
            "edl_api_requests",
            "Requests to the Kubernetes API by verb, resource and status code (0: no answer).",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "edl_api_request_seconds",
            "Time until the Kubernetes API answered; watches are not counted.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._depth = Gauge(
            "edl_controller_queue_depth", "Jobs that wait for a worker.", registry=self.registry
        )
        self._retries = Counter(
            "edl_controller_retries", "Jobs put back with a back-off.", registry=self.registry
        )
        self._leading = Gauge(
            "edl_controller_leading", "1 while this process may write, else 0.", registry=self.registry
        )

    def decided(self, kind: str, result: str, seconds: float) -> None:
        """Count a decision about an object of `kind` that took `seconds`."""
        self._decisions.labels(kind, result).inc()
        self._seconds.labels(kind).observe(seconds)

    def requested(self, record: RequestRecord) -> None:
        """Count a request; a `Cluster`'s observer."""
        self._requests.labels(record.verb, record.plural, str(record.code)).inc()
        if record.verb != "watch":
            self._request_seconds.labels(record.verb).observe(record.seconds)

    def retried(self) -> None:
        """Count a job put back with a back-off."""
        self._retries.inc()

    def observe_queue(self, depth: Callable[[], float]) -> None:
        """Read the queue's depth from `depth` at each scrape."""
        self._depth.set_function(depth)

    def led(self, leading: bool) -> None:
        """Note whether this process leads."""
        self._leading.set(1.0 if leading else 0.0)
