"""The agent's Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.runtime.process.metrics import ProcessMetrics


class ArgoAgentMetrics(ProcessMetrics):
    """Counters of one agent, in a registry of its own."""

    def __init__(self) -> None:
        super().__init__("edl_argo_agent_leading", "serves steps")
        self._results = Counter(
            "edl_argo_agent_results",
            "Steps answered, by stage and phase (Succeeded, Failed, Error).",
            ["stage", "phase"],
            registry=self.registry,
        )
        self._cancellations = Counter(
            "edl_argo_agent_cancellations",
            "Objects cancelled since their step had vanished, by action (delete, suspend).",
            ["action"],
            registry=self.registry,
        )
        self._deadlines = Counter(
            "edl_argo_agent_deadlines",
            "Workflows that Argo's controller was told of since their deadline had passed.",
            registry=self.registry,
        )
        self._serving = Gauge(
            "edl_argo_agent_serving", "Steps that are being served.", registry=self.registry
        )

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
