"""The DI server's Prometheus metrics."""

from prometheus_client import Counter

from edl_workflows.process.metrics import ApiMetrics


class Metrics(ApiMetrics):
    """Counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = Counter(
            "edl_di_server_answers",
            "Answers by method, call (replicas, profilings, other) and status code.",
            ["method", "call", "code"],
            registry=self.registry,
        )

    def answered(self, method: str, call: str, code: int) -> None:
        """Count an answer; the guard's `Count`."""
        self._answers.labels(method, call, str(code)).inc()
