"""Reads what jobs report about their training, and adds the reports of other jobs of the same scenario.

The profilings of a job are AdaptDL's scheduling hints::

    {"initBatchSize": 128, "maxBatchSize": 1280, "localBszBounds": [64, 256], "gradientAccumulation": true,
     "maxProfiledReplicas": 4, "gradParams": {"norm": 0.00136, "var": 0.000502},
     "perfParams": {"alpha_c": 0.121, "beta_c": 0.00568, "alpha_n": 0.0236, "beta_n": 0.00634,
                    "alpha_r": 0.0118, "beta_r": 0.00317, "gamma": 1.14},
     "remainingSamples": 1200000}

``remainingSamples`` is not one of AdaptDL's hints: it is the work left, in samples of batches of the initial
size, and is used by policies that order jobs by remaining work.

A job that is trained again, for example by a pipeline each night, need not measure again how its steps scale.
Step times depend on the program, so they are known from former jobs. Gradient noise depends on the progress
of the training. So a job first uses the step times of another job of its scenario, the one that was measured
with the most replicas, until it has been measured with as many replicas itself. For gradient noise it uses
only its own measurements; without them, a larger batch is assumed to gain nothing. So a job may start too
small, but not too large. Former jobs with other batch limits trained something else and are ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.pollux.goodput import BatchLimits, GoodputModel, GradParams, PerfParams

_PERF = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
MOST_SECONDS = 1e12
"""Longer durations count as this."""
_MOST_WHOLE = 2**31 - 1
_MOST_TIME = 1e9
"""Seconds; the longest part of a step."""
_LEAST_PASS = 1e-9
"""Seconds; the shortest pass. Within these limits no sum and no quotient overflows."""
_MOST_AMOUNT = 1e100
"""The largest square of a gradient, and the largest number of samples."""
_NO_NOISE = GradParams(1.0, 0.0)
"""Gradients without noise: a larger batch gains nothing."""


@dataclass(frozen=True)
class SchedulingHints:
    """What is known about a job.

    Attributes:
        model: its goodput; None if unknown.
        profiled: the most replicas with which it was measured; 0 before the first measurement.
        remaining: samples left to train, in batches of the initial size; None if unknown.
        limits: limits of its batch; None if unknown.
    """

    model: GoodputModel | None = None
    profiled: int = 0
    remaining: float | None = None
    limits: BatchLimits | None = None

    @property
    def remaining_seconds(self) -> float | None:
        """The work left, in seconds with one replica; None if unknown."""
        if self.model is None or self.remaining is None:
            return None
        return min(self.remaining / (float(self.model.best(1, 1).goodput) or 1.0), MOST_SECONDS)

    def after(self, former: Mapping[BatchLimits, "SchedulingHints"], most: int) -> "SchedulingHints":
        """These hints with the step times of a former job, if that one was measured with more replicas.

        Args:
            former: see `best_measured`.
            most: the most replicas of the job; measurements with more are of no use to it.
        """
        limits = self.limits or next(iter(former), None)
        best = former.get(limits) if limits is not None else None
        if best is None or best.model is None or min(best.profiled, most) <= self.profiled:
            return self
        grad = _NO_NOISE if self.model is None else self.model.grad
        return replace(self, model=replace(best.model, grad=grad), profiled=best.profiled)


def best_measured(hints: Iterable[SchedulingHints]) -> dict[BatchLimits, SchedulingHints]:
    """Batch limits → the hints that were measured with the most replicas; of equals, the first.

    Args:
        hints: the newest job's first; the result has the same order.
    """
    by_limits: dict[BatchLimits, SchedulingHints] = {}
    for candidate in hints:
        if candidate.model is not None:
            incumbent = by_limits.setdefault(candidate.model.limits, candidate)
            by_limits[candidate.model.limits] = max(incumbent, candidate, key=lambda each: each.profiled)
    return by_limits


def read_hints(profilings: Mapping[str, Any]) -> SchedulingHints:
    """Read a job's profilings.

    Args:
        profilings: as reported; unknown fields are ignored. Without `perfParams` and `gradParams` there is no
            model.

    Raises:
        InvalidError: a field is missing or invalid; the message names it.
    """
    hints = SchedulingHints(
        None,
        _whole(profilings, "maxProfiledReplicas", 0),
        _remaining(profilings.get("remainingSamples")),
        _limits(profilings) if profilings.get("initBatchSize") is not None else None,
    )
    if profilings.get("perfParams") is None or profilings.get("gradParams") is None:
        return hints
    perf, grad = _object(profilings, "perfParams"), _object(profilings, "gradParams")
    times = PerfParams(*(_number(perf, f"perfParams.{name}", name, _MOST_TIME) for name in _PERF))
    noise = GradParams(*(_number(grad, f"gradParams.{name}", name, _MOST_AMOUNT) for name in ("norm", "var")))
    limits = _limits(profilings)
    if times.alpha_c + times.beta_c * limits.atomic[0] < _LEAST_PASS:
        raise InvalidError(
            "profilings.perfParams: a pass of less than a nanosecond: alpha_c or beta_c is wrong"
        )
    return replace(hints, model=GoodputModel(times, noise, limits))


def _remaining(remaining_samples: Any) -> float | None:
    """The work left; None if it is no number, 0 if the job trained more than it declared."""
    if (
        isinstance(remaining_samples, bool)
        or not isinstance(remaining_samples, int | float)
        or not abs(remaining_samples) <= _MOST_AMOUNT
    ):
        return None
    return max(0.0, float(remaining_samples))


def _limits(profilings: Mapping[str, Any]) -> BatchLimits:
    initial = _whole(profilings, "initBatchSize", None)
    largest = _whole(profilings, "maxBatchSize", initial)
    bounds = profilings.get("localBszBounds") or (1, largest)
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise InvalidError("profilings.localBszBounds: not a list of two whole numbers")
    atomic = dict(zip(("least", "most"), bounds, strict=True))
    return BatchLimits(
        initial,
        largest,
        (_whole(atomic, "least", 1), _whole(atomic, "most", largest)),
        profilings.get("gradientAccumulation") is True,
    )


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, Mapping):
        raise InvalidError(f"profilings.{name}: not an object")
    return value


def _number(fields: Mapping[str, Any], path: str, name: str, most: float) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
        raise InvalidError(f"profilings.{path}: {value!r} is not a number of at most {most:g}")
    return float(value)


def _whole(fields: Mapping[str, Any], name: str, default: int | None) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= _MOST_WHOLE
        or value != int(value)
    ):
        raise InvalidError(f"profilings.{name}: {value!r} is not a whole number of at most {_MOST_WHOLE}")
    return int(value)
