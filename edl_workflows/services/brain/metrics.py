"""The Brain's Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from edl_workflows.runtime.process.metrics import SECONDS, ApiMetrics

CALLS = ("metrics", "optimize", "states", "jobs", "plans", "cluster")
_METHODS = ("GET", "POST")


class BrainMetrics(ApiMetrics):
    def __init__(self) -> None:
        super().__init__()
        self._answers = Counter(
            "edl_brain_answers",
            "Responses by method, call (metrics, optimize, states, jobs, plans, cluster, other) and status "
            "code.",
            ["method", "call", "code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "edl_brain_answer_seconds",
            "Time until a response began, by call; for reports, until they were durable.",
            ["call"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._waiting = Gauge(
            "edl_brain_store_waiting", "Writes that wait for the store.", registry=self.registry
        )

    def answered(self, method: str, call: str, code: int, seconds: float) -> None:
        """Count a response; see `CountAnswer`."""
        method, call = method if method in _METHODS else "other", call if call in CALLS else "other"
        self._answers.labels(method, call, str(code)).inc()
        self._seconds.labels(call).observe(seconds)

    def watch(self, waiting: Callable[[], int]) -> None:
        """Export the number of waiting writes."""
        self._waiting.set_function(waiting)
