"""The Brain's Prometheus metrics."""

from collections.abc import Callable

from edl_workflows.core.monitoring.servers import BRAIN_ANSWERS, BRAIN_CALLS, BRAIN_SECONDS, BRAIN_WAITING
from edl_workflows.runtime.process.metrics import ApiMetrics, make_counter, make_gauge, make_histogram

_METHODS = ("GET", "POST")


class BrainMetrics(ApiMetrics):
    def __init__(self) -> None:
        super().__init__()
        self._answers = make_counter(BRAIN_ANSWERS, self.registry)
        self._seconds = make_histogram(BRAIN_SECONDS, self.registry)
        self._waiting = make_gauge(BRAIN_WAITING, self.registry)

    def answered(self, method: str, call: str, code: int, seconds: float) -> None:
        """Count a response; see `CountAnswer`."""
        method, call = method if method in _METHODS else "other", call if call in BRAIN_CALLS else "other"
        self._answers.labels(method, call, str(code)).inc()
        self._seconds.labels(call).observe(seconds)

    def watch(self, waiting: Callable[[], int]) -> None:
        """Export the number of waiting writes."""
        self._waiting.set_function(waiting)
