"""Prometheus metrics that all processes have. Each attempt of a retried API request is counted, so that
failures are visible."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from edl_workflows.runtime.kube.connect import RequestRecord

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Buckets of histograms of durations, in seconds."""


class ApiMetrics:
    """Metrics of requests to the Kubernetes API, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "edl_api_requests",
            "Requests to the Kubernetes API by verb, resource and status code (0: no response).",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "edl_api_request_seconds",
            "Time until the Kubernetes API responded; watches are not counted.",
            ["verb"],
            buckets=SECONDS,
            registry=self.registry,
        )

    def requested(self, record: RequestRecord) -> None:
        """Count a request. This is the observer of a `Cluster`."""
        self._requests.labels(record.verb, record.plural, str(record.code)).inc()
        if record.verb != "watch":
            self._request_seconds.labels(record.verb).observe(record.seconds)


class ProcessMetrics(ApiMetrics):
    """Metrics of a process that competes for leadership.

    Args:
        leading: name of the gauge that shows whether this process leads.
        what: what a leader does, for the description of the gauge.
    """

    def __init__(self, leading: str, activity: str) -> None:
        super().__init__()
        self._leading = Gauge(leading, f"1 while this process {activity}, else 0.", registry=self.registry)

    def led(self, leading: bool) -> None:
        self._leading.set(1.0 if leading else 0.0)
