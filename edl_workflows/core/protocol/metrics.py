"""Metrics that a training program reports: names and values that reach the job's status and pipelines.

Bounded, because they are part of an object in the API server. Pipelines copy them, so a name must not contain
characters that are special to a template engine or a shell.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from edl_workflows.core.exceptions import InvalidError

T = TypeVar("T")

MAX_METRICS = 20
MAX_CHARTED = 5
"""How many metrics have a history."""
LOSS = "loss"
"""The metric that `Job.report_step` reports; it does not count among `MAX_METRICS`."""
MAX_NAME = 63
_NAME = r"^[A-Za-z][A-Za-z0-9_./-]*$"

MetricName = Annotated[str, Field(max_length=MAX_NAME, pattern=_NAME)]
FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]


def _check_count(metrics: dict[str, float]) -> dict[str, float]:
    if len(metrics) > MAX_METRICS:
        raise ValueError(f"{len(metrics)} metrics are more than {MAX_METRICS}")
    return metrics


Metrics = Annotated[dict[MetricName, FiniteNumber], AfterValidator(_check_count)]
"""Name → value."""
ChartedMetrics = Annotated[dict[MetricName, FiniteNumber], Field(max_length=MAX_CHARTED)]
"""Name → value, of metrics with a history."""


def check_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """The metrics that a program reports, as numbers. Values that are not finite are left out: they show that
    training diverged, but must not stop the program.

    Args:
        metrics: name → anything that `float` accepts, as a tensor with one element.

    Raises:
        InvalidError: a name is malformed, a value is no number, or there are too many.
    """
    if len(metrics) > MAX_METRICS:
        raise InvalidError(f"{len(metrics)} metrics: a job reports at most {MAX_METRICS}; choose those")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if len(str(name)) > MAX_NAME or not re.fullmatch(_NAME[1:-1], str(name)):
            raise InvalidError(
                f"the metric's name {str(name)[:80]!r}: a letter, then letters, digits and _ . / - are "
                f"allowed, at most {MAX_NAME} characters"
            )
        try:
            number = float(value)  # type: ignore[arg-type]  # refused if it is no number
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidError(f"the metric {name!r} is no number: {error}") from error
        if math.isfinite(number):
            numbers[name] = number
    return numbers


def sort_names(names: Iterable[str]) -> list[str]:
    """The names of metrics in the order in which people see them: the loss first, then the others by name."""
    return sorted(names, key=lambda name: (name != LOSS, name))


def choose_charted(metrics: Mapping[str, float], earlier: Iterable[str] = ()) -> dict[str, float]:
    """The metrics for a new point of a history, at most `MAX_CHARTED`: those that the history has already,
    then the loss, then others by name. Values have six significant digits, as many as a chart shows.

    Args:
        metrics: the newest values.
        earlier: names that the history has already.
    """
    names = list(dict.fromkeys((*earlier, *sort_names(metrics))))[:MAX_CHARTED]
    return {name: float(f"{metrics[name]:.6g}") for name in names if name in metrics}


def describe_metrics(metrics: Mapping[str, float], most: int = MAX_METRICS) -> str:
    """Metrics in one line, the loss first: ``loss 0.31, accuracy 0.94``.

    Args:
        metrics: the newest values.
        most: how many are listed; of the others only the number is given.
    """
    names = sort_names(metrics)
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*(f"{name} {metrics[name]:.4g}" for name in names[:most]), *more])


def select_evenly(points: Sequence[T], limit: int) -> list[T]:
    """At most `limit` points of a history, evenly spread, with the first and the last.

    Args:
        points: the points.
        limit: 2 or more.
    """
    if len(points) <= limit:
        return list(points)
    last = len(points) - 1
    return [points[round(index * last / (limit - 1))] for index in range(limit)]
