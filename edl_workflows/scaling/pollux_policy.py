"""Pollux as a policy of the allocator: what jobs report becomes their speed-ups.

A job reports AdaptDL's scheduling hints, whose names stand in its profilings::

    {"initBatchSize": 128, "maxBatchSize": 1280, "localBszBounds": [64, 256], "gradientAccumulation": true,
     "maxProfiledReplicas": 4, "gradParams": {"norm": 0.00136, "var": 0.000502},
     "perfParams": {"alpha_c": 0.121, "beta_c": 0.00568, "alpha_n": 0.0236, "beta_n": 0.00634,
                    "alpha_r": 0.0118, "beta_r": 0.00317, "gamma": 1.14}}

A job that has not reported, or what makes no sense, counts as one that gains as much from each replica, and gets what it needs
at least, or has. Nobody gets more than twice the replicas with which he was measured (OSDI'21, §4.1): a model says little of
what is far from its data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.goodput import BatchLimits, GoodputModel, GradParams, PerfParams
from edl_workflows.scaling.policy import Allocation, JobInfo, NodeInfo
from edl_workflows.scaling.pollux import optimize
from edl_workflows.scaling.pollux_model import PolluxJob, PolluxOptions
from edl_workflows.scaling.speedup import Speedups, SpeedupTable

MOST_REPLICAS = 512
"""A table has no more: further ones count as worth nothing, and no job gets them beyond its minimum."""
_PERF = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")


@dataclass(frozen=True)
class Hints:
    """What a job has reported.

    Attributes:
        model: its goodput; None before there is one.
        profiled: the most replicas with which it was measured; 0 for none.
    """

    model: GoodputModel | None = None
    profiled: int = 0


def hints_of(profilings: Mapping[str, Any]) -> Hints:
    """Read a job's profilings.

    Args:
        profilings: as they came; other fields are ignored. Without `perfParams` and `gradParams` there is no model.

    Raises:
        InvalidError: a field is missing or makes no sense, by its name.
    """
    profiled = _whole(profilings, "maxProfiledReplicas", 0)
    if profilings.get("perfParams") is None or profilings.get("gradParams") is None:
        return Hints(profiled=profiled)
    perf, grad = _object(profilings, "perfParams"), _object(profilings, "gradParams")
    initial = _whole(profilings, "initBatchSize", None)
    largest = _whole(profilings, "maxBatchSize", initial)
    bounds = profilings.get("localBszBounds") or (1, largest)
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise InvalidError("profilings.localBszBounds: not a list of two whole numbers")
    atomic = dict(zip(("least", "most"), bounds, strict=True))
    limits = BatchLimits(
        initial,
        largest,
        (_whole(atomic, "least", 1), _whole(atomic, "most", largest)),
        profilings.get("gradientAccumulation") is True,
    )
    perf_params = PerfParams(*(_number(perf, f"perfParams.{name}", name) for name in _PERF))
    grad_params = GradParams(*(_number(grad, f"gradParams.{name}", name) for name in ("norm", "var")))
    return Hints(GoodputModel(perf_params, grad_params, limits), profiled)


class PolluxPolicy:
    """See the module. It keeps speed-up tables between calls, which change no answer.

    Args:
        options: how to weigh; the paper's if left out.
    """

    def __init__(self, options: PolluxOptions | None = None) -> None:
        self._options = options or PolluxOptions()
        self._speedups = Speedups()

    def allocate(self, job: JobInfo, nodes: Mapping[str, NodeInfo]) -> list[str]:
        """What the job would get of these nodes by itself."""
        return self._optimized({job.key: (job, _hints(job))}, {}, nodes, {})[job.key]

    def optimize(
        self,
        jobs: Mapping[str, JobInfo],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        """The best answer, found by `edl_workflows.scaling.pollux.optimize`."""
        hinted = {key: (job, _hints(job)) for key, job in jobs.items()}
        models = {
            key: (hints.model, _most(job)) for key, (job, hints) in hinted.items() if hints.model is not None
        }
        return self._optimized(hinted, self._speedups.tables(models), nodes, previous)

    def _optimized(
        self,
        jobs: Mapping[str, tuple[JobInfo, Hints]],
        tables: Mapping[str, SpeedupTable],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        held = {key: list(previous.get(key, ())) for key in jobs}
        while True:
            asked = [
                PolluxJob(
                    replace(job, max_replicas=min(job.max_replicas, _allowed(job, hints, held[key]))),
                    tables.get(key) or SpeedupTable.linear(_most(job)),
                )
                for key, (job, hints) in jobs.items()
            ]
            found = optimize(asked, list(nodes.values()), held, self._options)
            if found == held:
                return found
            held = found  # who has less now may have less again: what is held is one of the bounds


def _hints(job: JobInfo) -> Hints:
    try:
        return hints_of(job.profilings)
    except InvalidError:
        return Hints()


def _most(job: JobInfo) -> int:
    """As many replicas as its table has."""
    return max(min(job.max_replicas, MOST_REPLICAS), 1)


def _allowed(job: JobInfo, hints: Hints, held: Allocation) -> int:
    """As many replicas as it may have now."""
    return max(job.min_replicas, 2 * hints.profiled, len(held))


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
