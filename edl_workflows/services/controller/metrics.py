"""The controller's Prometheus metrics."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from edl_workflows.core.monitoring import controller as declared
from edl_workflows.core.monitoring.metric import Metric
from edl_workflows.runtime.process.metrics import (
    ProcessMetrics,
    make_counter,
    make_gauge,
    make_gauge_family,
    make_histogram,
)
from edl_workflows.services.controller.accounting.job_metrics import ExportedJobs


class _LatestFigures(Collector):
    """A gauge with the figures of this replica's latest decision. It has no samples before the first one, and
    while another replica decides.

    Args:
        metric: a gauge with at most one label.
        decides: whether this replica makes such decisions now.
    """

    def __init__(self, metric: Metric, decides: Callable[[], bool]) -> None:
        self._metric, self._decides = metric, decides
        self._figures: Mapping[str, float] = {}

    def set(self, figures: Mapping[str, float]) -> None:
        """Note the figures by the label's value; {} if there are none any more."""
        self._figures = figures

    def collect(self) -> Iterator[MetricFamily]:
        """The gauge at a scrape."""
        family = make_gauge_family(self._metric)
        for value, figure in self._figures.items() if self._decides() else ():
            family.add_metric([value] if self._metric.labels else [], figure)
        yield family


class ControllerMetrics(ProcessMetrics):
    """Counters of one manager, in a registry of its own."""

    def __init__(self) -> None:
        super().__init__(declared.LEADING)
        self._decides_for_cluster: Callable[[], bool] = lambda: True
        self._decisions = make_counter(declared.RECONCILIATIONS, self.registry)
        self._seconds = make_histogram(declared.RECONCILE_SECONDS, self.registry)
        self._depth = make_gauge(declared.QUEUE_DEPTH, self.registry)
        self._retries = make_counter(declared.RETRIES, self.registry)
        self._missing = make_gauge(declared.DEFINITION_MISSING, self.registry)
        self._allocation_seconds = make_histogram(declared.ALLOCATION_SECONDS, self.registry)
        self._unallocated = self._latest(declared.UNALLOCATED_JOBS, self._decides)
        self._decision_seconds = make_histogram(declared.AUTOSCALER_SECONDS, self.registry)
        self._autoscaled = self._latest(declared.AUTOSCALER_JOBS, self._decides)
        self._progress_period = self._latest(declared.PROGRESS_PERIOD, lambda: True)
        self.jobs = ExportedJobs(self.registry)

    def _latest(self, metric: Metric, decides: Callable[[], bool]) -> _LatestFigures:
        figures = _LatestFigures(metric, decides)
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
