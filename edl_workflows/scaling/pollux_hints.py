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
So a job has the step times of the one of its scenario that was measured with the most replicas, and gradients of its own.
Until it has measured these, a larger batch counts as worth nothing: it may start too small, but not too large.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.goodput import BatchLimits, GoodputModel, GradParams, PerfParams

_PERF = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
_NO_NOISE = GradParams(1.0, 0.0)
"""Of gradients that are exact, so that nothing is gained by a larger batch."""


@dataclass(frozen=True)
class Hints:
    """What is known of a job.

    Attributes:
        model: its goodput; None before there is one.
        profiled: the most replicas with which it was measured; 0 for none.
        remaining: samples that are left to train, in batches of the initial size; None where it does not say.
    """

    model: GoodputModel | None = None
    profiled: int = 0
    remaining: float | None = None

    @property
    def remaining_seconds(self) -> float | None:
        """What is left, in seconds with one replica; None where that is not known."""
        if self.model is None or self.remaining is None:
            return None
        return self.remaining / (float(self.model.best(1, 1).goodput) or 1.0)

    def after(self, former: "Hints") -> "Hints":
        """The same with what a former job of the scenario knows better: how long steps take with more replicas.

        One with other limits of its batch is not the same training, and adds nothing.
        """
        if former.model is None or former.profiled <= self.profiled:
            return self
        if self.model is None:
            return Hints(replace(former.model, grad=_NO_NOISE), former.profiled, self.remaining)
        if self.model.limits != former.model.limits:
            return self
        return Hints(replace(self.model, perf=former.model.perf), former.profiled, self.remaining)


def best_measured(hints: Iterable[Hints]) -> Hints:
    """The one with a model that was measured with the most replicas, of equals the first; empty hints if there is none."""
    return max((one for one in hints if one.model is not None), key=lambda one: one.profiled, default=Hints())


def hints_of(profilings: Mapping[str, Any]) -> Hints:
    """Read a job's profilings.

    Args:
        profilings: as they came; other fields are ignored. Without `perfParams` and `gradParams` there is no model.

    Raises:
        InvalidError: a field is missing or makes no sense, by its name.
    """
    profiled = _whole(profilings, "maxProfiledReplicas", 0)
    remaining = None
    if profilings.get("remainingSamples") is not None:
        remaining = _number(profilings, "remainingSamples", "remainingSamples")
        if remaining < 0:
            raise InvalidError(f"profilings.remainingSamples: {remaining} is below 0")
    if profilings.get("perfParams") is None or profilings.get("gradParams") is None:
        return Hints(None, profiled, remaining)
    perf, grad = _object(profilings, "perfParams"), _object(profilings, "gradParams")
    perf_params = PerfParams(*(_number(perf, f"perfParams.{name}", name) for name in _PERF))
    grad_params = GradParams(*(_number(grad, f"gradParams.{name}", name) for name in ("norm", "var")))
    return Hints(GoodputModel(perf_params, grad_params, _limits(profilings)), profiled, remaining)


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


def _number(fields: Mapping[str, Any], path: str, name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidError(f"profilings.{path}: {value!r} is not a number")
    return float(value)


def _whole(fields: Mapping[str, Any], name: str, default: int | None) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not isfinite(value)
        or value != int(value)
    ):
        raise InvalidError(f"profilings.{name}: {value!r} is not a whole number")
    return int(value)
