"""What jobs report of their training, as Pollux reads it, and what other jobs of the same scenario add to it.

A job reports AdaptDL's scheduling hints, whose names stand in its profilings::

    {"initBatchSize": 128, "maxBatchSize": 1280, "localBszBounds": [64, 256], "gradientAccumulation": true,
     "maxProfiledReplicas": 4, "gradParams": {"norm": 0.00136, "var": 0.000502},
     "perfParams": {"alpha_c": 0.121, "beta_c": 0.00568, "alpha_n": 0.0236, "beta_n": 0.00634,
                    "alpha_r": 0.0118, "beta_r": 0.00317, "gamma": 1.14},
     "remainingSamples": 1200000}

The last is no hint of AdaptDL: what is left to train, in samples of batches of the initial size; the policy `shortest` goes by it.

A job that is trained again, as pipelines do each night, need not find out once more how its steps scale. How long they take
depends on the program, so that it is known from a former job; how noisy its gradients are depends on how far the training is.
So a job has the step times of the one of its scenario that was measured with the most replicas, while it was not measured with as
many itself, and gradients of its own. Until it has measured these, a larger batch counts as worth nothing: it may start too
small, but not too large. A former job with other limits of the batch trained something else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.pollux.goodput import BatchLimits, GoodputModel, GradParams, PerfParams

_PERF = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
MOST_SECONDS = 1e12
"""What would take longer counts as this."""
_MOST_WHOLE = 2**31 - 1
_MOST_TIME = 1e9
"""Seconds of a part of a step."""
_LEAST_PASS = 1e-9
"""Seconds of a pass. Within these limits no sum and no quotient overflows."""
_MOST_AMOUNT = 1e100
"""Of the squares of gradients, and of samples."""
_NO_NOISE = GradParams(1.0, 0.0)
"""Of gradients that are exact, so that nothing is gained by a larger batch."""


@dataclass(frozen=True)
class SchedulingHints:
    """What is known of a job.

    Attributes:
        model: its goodput; None before there is one.
        profiled: the most replicas with which it was measured; 0 for none.
        remaining: samples that are left to train, in batches of the initial size; None where it does not say.
        limits: of its batch; None where it does not say.
    """

    model: GoodputModel | None = None
    profiled: int = 0
    remaining: float | None = None
    limits: BatchLimits | None = None

    @property
    def remaining_seconds(self) -> float | None:
        """What is left, in seconds with one replica; None where that is not known."""
        if self.model is None or self.remaining is None:
            return None
        return min(self.remaining / (float(self.model.best(1, 1).goodput) or 1.0), MOST_SECONDS)

    def after(self, former: Mapping[BatchLimits, "SchedulingHints"], most: int) -> "SchedulingHints":
        """The same with what former jobs of the scenario know better: how long steps take with more replicas.

        Args:
            former: see `best_measured`.
            most: replicas that the job may have; what is known of more is of no use to it.
        """
        limits = self.limits or next(iter(former), None)
        best = former.get(limits) if limits is not None else None
        if best is None or best.model is None or min(best.profiled, most) <= self.profiled:
            return self
        grad = _NO_NOISE if self.model is None else self.model.grad
        return replace(self, model=replace(best.model, grad=grad), profiled=best.profiled)


def best_measured(hints: Iterable[SchedulingHints]) -> dict[BatchLimits, SchedulingHints]:
    """Limits of the batch → of the jobs that have them and a model the one measured with the most replicas, of equals the first.

    Args:
        hints: the newest job's first; so are the limits then.
    """
    found: dict[BatchLimits, SchedulingHints] = {}
    for one in hints:
        if one.model is not None:
            known = found.setdefault(one.model.limits, one)
            found[one.model.limits] = max(known, one, key=lambda each: each.profiled)
    return found


def read_hints(profilings: Mapping[str, Any]) -> SchedulingHints:
    """Read a job's profilings.

    Args:
        profilings: as they came; other fields are ignored. Without `perfParams` and `gradParams` there is no model.

    Raises:
        InvalidError: a field is missing or makes no sense, by its name.
    """
    known = SchedulingHints(
        None,
        _whole(profilings, "maxProfiledReplicas", 0),
        _remaining(profilings.get("remainingSamples")),
        _limits(profilings) if profilings.get("initBatchSize") is not None else None,
    )
    if profilings.get("perfParams") is None or profilings.get("gradParams") is None:
        return known
    perf, grad = _object(profilings, "perfParams"), _object(profilings, "gradParams")
    times = PerfParams(*(_number(perf, f"perfParams.{name}", name, _MOST_TIME) for name in _PERF))
    noise = GradParams(*(_number(grad, f"gradParams.{name}", name, _MOST_AMOUNT) for name in ("norm", "var")))
    limits = _limits(profilings)
    if times.alpha_c + times.beta_c * limits.atomic[0] < _LEAST_PASS:
        raise InvalidError(
            "profilings.perfParams: a pass of less than a nanosecond: alpha_c or beta_c is wrong"
        )
    return replace(known, model=GoodputModel(times, noise, limits))


def _remaining(said: Any) -> float | None:
    """It only ranks jobs: what is no number is not said, and a job that trains more than it declared has nothing left."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not abs(said) <= _MOST_AMOUNT:
        return None
    return max(0.0, float(said))


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
