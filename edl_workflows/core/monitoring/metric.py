"""What the declaration of a metric consists of."""

import re
from dataclasses import dataclass
from enum import StrEnum

from edl_workflows.core.exceptions import InvalidError

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Buckets of histograms of calls, in seconds."""
PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Buckets of histograms of pauses in training, in seconds."""
WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0)
"""Buckets of histograms of times for which jobs wait, in seconds."""

_NAME = re.compile(r"[a-z]+(_[a-z0-9]+)+")
_COUNTER = "_total"


class MetricType(StrEnum):
    """Prometheus' types of metrics, as far as they are used."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Label:
    """A label of a metric.

    Attributes:
        name: its name.
        values: all values that it can have; () if they depend on the cluster.
    """

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: as Prometheus stores it; a counter's ends in ``_total``.
        type: its type.
        text: what it means, in one sentence. Prometheus shows it as the help.
        labels: the labels of each of its series.
        unit: of its values, such as "seconds"; "" for a number of things, a share, or 0 and 1.
        buckets: upper limits of a histogram's buckets.
        page: where the documentation says more, relative to the reference; "" for nowhere.

    Raises:
        InvalidError: the name is not one of Prometheus, or does not fit the type; a histogram has no buckets.
    """

    name: str
    type: MetricType
    text: str
    labels: tuple[Label, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()
    page: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidError(f"metric {self.name!r}: use lower-case words, joined by underscores")
        if self.name.endswith(_COUNTER) != (self.type is MetricType.COUNTER):
            raise InvalidError(f"metric {self.name!r}: counters, and no others, end in {_COUNTER}")
        if bool(self.buckets) != (self.type is MetricType.HISTOGRAM):
            raise InvalidError(f"metric {self.name!r}: histograms, and no others, have buckets")

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels."""
        return tuple(label.name for label in self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus stores its samples."""
        if self.type is MetricType.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


@dataclass(frozen=True)
class MonitoredProcess:
    """A process that exports metrics.

    Attributes:
        name: of its executable part, such as "controller".
        title: heading of its section in the reference.
        endpoint: where it serves them, as Markdown.
        metrics: its own metrics, in the order of the reference.
        shared: the metrics that several processes have.
        note: what else the reference says, as Markdown.
    """

    name: str
    title: str
    endpoint: str
    metrics: tuple[Metric, ...]
    shared: tuple[Metric, ...] = ()
    note: str = ""

    @property
    def all_metrics(self) -> tuple[Metric, ...]:
        """Everything that it exports."""
        return (*self.metrics, *self.shared)


def counter(name: str, text: str, *labels: Label, unit: str = "", page: str = "") -> Metric:
    """Declare a counter; see `Metric`."""
    return Metric(name, MetricType.COUNTER, text, labels, unit, page=page)


def gauge(name: str, text: str, *labels: Label, unit: str = "", page: str = "") -> Metric:
    """Declare a gauge; see `Metric`."""
    return Metric(name, MetricType.GAUGE, text, labels, unit, page=page)


def histogram(
    name: str, text: str, *labels: Label, buckets: tuple[float, ...] = SECONDS, page: str = ""
) -> Metric:
    """Declare a histogram of durations; see `Metric`."""
    return Metric(name, MetricType.HISTOGRAM, text, labels, "seconds", buckets, page)
