"""The agent's Prometheus metrics. A repeated API request counts each time, so failures stand beside successes."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from edl_workflows.kube.connect import RequestRecord


class Metrics:
    """Counters of one agent, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
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
        self._pokes = Counter(
            "edl_argo_agent_deadlines",
            "Workflows that Argo's controller was told of since their deadline had passed.",
            registry=self.registry,
        )
        self._requests = Counter(
            "edl_api_requests",
            "Requests to the Kubernetes API by verb, resource and status code (0: no answer).",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._serving = Gauge(
            "edl_argo_agent_serving", "Steps that are being served.", registry=self.registry
        )
        self._leading = Gauge(
            "edl_argo_agent_leading", "1 while this process serves steps, else 0.", registry=self.registry
        )

    def answered(self, stage: str, phase: str) -> None:
        """Count a step's end; `stage` is "" where the step's body names none that exists."""
        self._results.labels(stage, phase).inc()

    def cancelled(self, action: str) -> None:
        """Count an object."""
        self._cancellations.labels(action).inc()

    def poked(self) -> None:
        """Count a workflow whose deadline had passed."""
        self._pokes.inc()

    def requested(self, record: RequestRecord) -> None:
        """Count a request; a `Cluster`'s observer."""
        self._requests.labels(record.verb, record.plural, str(record.code)).inc()

    def observe_serving(self, count: Callable[[], float]) -> None:
        """Read how many steps are being served from `count` at each scrape."""
        self._serving.set_function(count)

    def led(self, leading: bool) -> None:
        """Note whether this process serves."""
        self._leading.set(1.0 if leading else 0.0)
