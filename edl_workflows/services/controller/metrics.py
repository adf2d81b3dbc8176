"""The controller's Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from edl_workflows.runtime.process.metrics import SECONDS, ProcessMetrics


class ControllerMetrics(ProcessMetrics):
    """Counters of one manager, in a registry of its own."""

    def __init__(self) -> None:
        super().__init__("edl_controller_leading", "may write")
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
            buckets=SECONDS,
            registry=self.registry,
        )
        self._depth = Gauge(
            "edl_controller_queue_depth", "Jobs that wait for a worker.", registry=self.registry
        )
        self._retries = Counter(
            "edl_controller_retries", "Jobs put back with a back-off.", registry=self.registry
        )
        self._missing = Gauge(
            "edl_controller_definition_missing",
            "1 while the API server lacks the kind's definition.",
            ["kind"],
            registry=self.registry,
        )

        self._allocation_seconds = Histogram(
            "edl_controller_allocation_seconds",
            "Time of one decision about the preemptible jobs' replicas and nodes, by policy.",
            ["policy"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._unallocated = Gauge(
            "edl_controller_unallocated_jobs",
            "Preemptible jobs that wait for room, at the last decision.",
            registry=self.registry,
        )

        self._decision_seconds = Histogram(
            "edl_controller_autoscaler_seconds",
            "Time of one plan of the autoscaler.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._decided = Gauge(
            "edl_controller_autoscaler_jobs",
            "Jobs that the autoscaler's last plan changes, and jobs that it leaves below their maximum.",
            ["result"],
            registry=self.registry,
        )

        self._progress_period = Gauge(
            "edl_controller_progress_period_seconds",
            "Least time between two writes of mere progress by the master of a job.",
            registry=self.registry,
        )

    def decided(self, kind: str, result: str, seconds: float) -> None:
        """Count a decision about an object of `kind` that took `seconds`."""
        self._decisions.labels(kind, result).inc()
        self._seconds.labels(kind).observe(seconds)

    def retried(self) -> None:
        """Count a job put back with a back-off."""
        self._retries.inc()

    def observe_queue(self, depth: Callable[[], float]) -> None:
        """Read the queue's depth from `depth` at each scrape."""
        self._depth.set_function(depth)

    def observe_definition(self, kind: str, missing: Callable[[], bool]) -> None:
        """Read at each scrape whether a kind's definition is missing."""
        self._missing.labels(kind).set_function(missing)

    def allocated(self, policy: str, seconds: float) -> None:
        """Count a policy's decision that took `seconds`."""
        self._allocation_seconds.labels(policy).observe(seconds)

    def chose_progress_period(self, seconds: float) -> None:
        """Note how often masters write mere progress."""
        self._progress_period.set(seconds)

    def unallocated(self, jobs: int) -> None:
        """Note how many jobs wait for room."""
        self._unallocated.set(jobs)

    def autoscaled(self, seconds: float, changed: int, held_back: int) -> None:
        """Note the autoscaler's decision, which took `seconds`."""
        self._decision_seconds.observe(seconds)
        self._decided.labels("changed").set(changed)
        self._decided.labels("held back").set(held_back)
