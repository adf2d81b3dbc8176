"""The controller's Prometheus metrics."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edl_workflows.runtime.process.metrics import SECONDS, ProcessMetrics


class _LatestFigures(Collector):
    """A gauge with the figures of this replica's latest decision. It has no samples before the first one, and
    while another replica decides.

    Args:
        name, text, label: as of a `Gauge`; "": without a label.
        decides: whether this replica makes such decisions now.
    """

    def __init__(self, name: str, text: str, label: str, decides: Callable[[], bool]) -> None:
        self._name, self._text, self._label = name, text, label
        self._decides = decides
        self._figures: Mapping[str, float] = {}

    def set(self, figures: Mapping[str, float]) -> None:
        """Note the figures by the label's value; {} if there are none any more."""
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """The gauge at a scrape."""
        family = GaugeMetricFamily(self._name, self._text, labels=[self._label] if self._label else [])
        for value, figure in self._figures.items() if self._decides() else ():
            family.add_metric([value] if self._label else [], figure)
        yield family


class ControllerMetrics(ProcessMetrics):
    """Counters of one manager, in a registry of its own."""

    def __init__(self) -> None:
        super().__init__("edl_controller_leading", "may write")
        self._decides_for_cluster: Callable[[], bool] = lambda: True
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
        self._unallocated = self._latest(
            "edl_controller_unallocated_jobs", "Preemptible jobs that wait for room, at the last decision."
        )

        self._decision_seconds = Histogram(
            "edl_controller_autoscaler_seconds",
            "Time of one plan of the autoscaler.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._autoscaled = self._latest(
            "edl_controller_autoscaler_jobs",
            "Jobs that the autoscaler's last plan changes, and jobs that it leaves below their maximum.",
            "result",
        )

        self._progress_period = _LatestFigures(
            "edl_controller_progress_period_seconds",
            "Least time between two writes of mere progress by the master of a job.",
            "",
            lambda: True,
        )
        self.registry.register(self._progress_period)

    def _latest(self, name: str, text: str, label: str = "") -> _LatestFigures:
        """A gauge of decisions about the jobs of the whole cluster."""
        figures = _LatestFigures(name, text, label, self._decides)
        self.registry.register(figures)
        return figures

    def _decides(self) -> bool:
        return self._decides_for_cluster()

    def observe_ownership(self, decides_for_cluster: Callable[[], bool]) -> None:
        """Ask at each scrape whether this replica decides about the jobs of the whole cluster."""
        self._decides_for_cluster = decides_for_cluster

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
        self._progress_period.set({"": seconds})

    def unallocated(self, jobs: int) -> None:
        """Note how many jobs wait for room."""
        self._unallocated.set({"": jobs})

    def autoscaled(self, seconds: float, changed: int, held_back: int) -> None:
        """Note the autoscaler's decision, which took `seconds`."""
        self._decision_seconds.observe(seconds)
        self._autoscaled.set({"changed": changed, "held back": held_back})

    def nothing_to_autoscale(self) -> None:
        """Note that there are no jobs for the autoscaler."""
        self._autoscaled.set({"changed": 0, "held back": 0})
