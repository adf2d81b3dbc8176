"""Prometheus metrics, made from their declarations (`edl_workflows.core.monitoring`), and those that all
servers have. Each attempt of a retried API request is counted, so that failures are visible."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from edl_workflows.core.monitoring.durations import DurationCounts
from edl_workflows.core.monitoring.metric import Metric
from edl_workflows.core.monitoring.processes import API_REQUESTS, API_SECONDS
from edl_workflows.runtime.kube.connect import RequestRecord


def make_counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """A declared counter, exported by a registry."""
    return Counter(metric.name, metric.text, metric.label_names, registry=registry)


def make_gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    """A declared gauge, exported by a registry."""
    return Gauge(metric.name, metric.text, metric.label_names, registry=registry)


def make_histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    """A declared histogram, exported by a registry."""
    return Histogram(metric.name, metric.text, metric.label_names, buckets=metric.buckets, registry=registry)


def make_gauge_family(metric: Metric) -> GaugeMetricFamily:
    """A declared gauge for the answer to one scrape; the caller adds its samples."""
    return GaugeMetricFamily(metric.name, metric.text, labels=metric.label_names)


def make_counter_family(metric: Metric) -> CounterMetricFamily:
    """A declared counter for the answer to one scrape; the caller adds its samples."""
    return CounterMetricFamily(metric.name, metric.text, labels=metric.label_names)


def make_histogram_family(
    metric: Metric, series: Mapping[tuple[str, ...], DurationCounts]
) -> HistogramMetricFamily:
    """A declared histogram for the answer to one scrape, with its counts by the values of its labels."""
    family = HistogramMetricFamily(metric.name, metric.text, labels=metric.label_names)
    for labels, counts in series.items():
        family.add_metric(labels, counts.cumulative(), counts.total)
    return family


class ApiMetrics:
    """Metrics of requests to the Kubernetes API, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = make_counter(API_REQUESTS, self.registry)
        self._request_seconds = make_histogram(API_SECONDS, self.registry)

    def requested(self, record: RequestRecord) -> None:
        """Count a request. This is the observer of a `Cluster`."""
        self._requests.labels(record.verb, record.plural, str(record.code)).inc()
        if record.verb != "watch":
            self._request_seconds.labels(record.verb).observe(record.seconds)


class ProcessMetrics(ApiMetrics):
    """Metrics of a process that competes for leadership.

    Args:
        leading: the gauge that shows whether this process leads.
    """

    def __init__(self, leading: Metric) -> None:
        super().__init__()
        self._leading = make_gauge(leading, self.registry)

    def led(self, leading: bool) -> None:
        self._leading.set(1.0 if leading else 0.0)
