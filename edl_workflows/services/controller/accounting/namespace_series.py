"""Series of namespaces, which end some time after the last job of their namespace."""

import threading
from collections.abc import Collection
from datetime import datetime
from typing import TypeVar

from prometheus_client.metrics import MetricWrapperBase

M = TypeVar("M", bound=MetricWrapperBase)


class NamespaceSeries:
    """The series of counters and histograms that have the labels kind and namespace first. A cluster in which
    namespaces come and go would otherwise have more and more of them.

    Args:
        seconds: how long the series of a namespace without jobs stay.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._series: dict[str, set[tuple[MetricWrapperBase, tuple[str, ...]]]] = {}
        self._empty: dict[str, datetime] = {}
        """Since when each namespace has had no jobs."""

    def labelled(self, metric: M, kind: str, namespace: str, *labels: str) -> M:
        """A series of a metric, to be changed at once."""
        with self._lock:
            self._series.setdefault(namespace, set()).add((metric, (kind, namespace, *labels)))
            self._empty.pop(namespace, None)
            return metric.labels(kind, namespace, *labels)

    def drop_old(self, namespaces: Collection[str], now: datetime) -> None:
        """Drop the series of namespaces that have had no jobs for long.

        Args:
            namespaces: those that have jobs.
            now: the time.
        """
        with self._lock:
            for namespace in list(self._series):
                if namespace in namespaces:
                    self._empty.pop(namespace, None)
                    continue
                since = self._empty.setdefault(namespace, now)
                if (now - since).total_seconds() > self._seconds:
                    del self._empty[namespace]
                    for metric, labels in self._series.pop(namespace):
                        metric.remove(*labels)
