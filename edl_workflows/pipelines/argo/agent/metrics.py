"""The agent's Prometheus metrics."""

from collections.abc import Callable

from edl_workflows.core.monitoring.servers import (
    ARGO_CANCELLATIONS,
    ARGO_DEADLINES,
    ARGO_LEADING,
    ARGO_RESULTS,
    ARGO_SERVING,
)
from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.runtime.process.metrics import ProcessMetrics, make_counter, make_gauge


class ArgoAgentMetrics(ProcessMetrics):
    """Counters of one agent, in a registry of its own."""

    def __init__(self) -> None:
        super().__init__(ARGO_LEADING)
        self._results = make_counter(ARGO_RESULTS, self.registry)
        self._cancellations = make_counter(ARGO_CANCELLATIONS, self.registry)
        self._deadlines = make_counter(ARGO_DEADLINES, self.registry)
        self._serving = make_gauge(ARGO_SERVING, self.registry)

    def answered(self, stage: str, phase: str) -> None:
        """Count the end of a step, by the stage that its body asks for. The label is "" for all names that no
        stage has, because whoever writes workflows chooses the text.
        """
        label = stage if any(candidate.name == stage for candidate in STAGES) else ""
        self._results.labels(label, phase).inc()

    def cancelled(self, action: str) -> None:
        """Count a cancelled object, by what was done to it."""
        self._cancellations.labels(action).inc()

    def deadline_passed(self) -> None:
        """Count a workflow whose deadline had passed."""
        self._deadlines.inc()

    def observe_serving(self, count: Callable[[], float]) -> None:
        """Read how many steps are being served from `count` at each scrape."""
        self._serving.set_function(count)
