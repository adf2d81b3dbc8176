"""Fits the parameters of step times (`edl_workflows.core.scaling.pollux.goodput`) to measurements.

The fit minimizes squared errors of logarithms, so that a short step counts as much as a long one. It uses the
Levenberg–Marquardt method on the logarithms of the parameters, so that no parameter becomes negative.
Measurements of the same placement and batch are replaced by their median. An error of more than a tenth
counts linearly, not squared (Huber), so that a straggler does little harm.

Where data is missing, assumptions are optimistic, so that a job is tried with more replicas (OSDI'21, §4.1,
and AdaptDL):

- only one batch size: half of a pass is constant;
- only one number of replicas on one node, or only one on several nodes: the exchange there does not depend on
  the number;
- no measurement with several replicas on one node: the exchange within a node takes no time;
- no measurement on several nodes: the exchange between nodes takes 1.1 times as long as within one;
- otherwise: little overlap, and little growth per replica.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.pollux.goodput import MAX_GAMMA, PerfParams
from edl_workflows.core.scaling.portable_math import (
    Floats,
    ordered_sum,
    portable_exp,
    portable_log,
    solve_positive,
)

_LEAST = 1e-8
"""Seconds; replaces zero, which has no logarithm."""
_INTER_NODE = 1.1
_HUBER = 0.1
_PRIOR = 1e-3
"""Square root of the weight of assumptions; data with 1 % noise outweighs them."""
_MOST_GROWTH = 150.0
"""Largest growth of an exchange per replica, relative to its constant part, that the assumptions
distinguish."""
_GAMMAS = (1.1, 2.0, 5.0)
"""Starting points of the search; because of the overlap there are several local optima."""
_ITERATIONS = 100
_ENOUGH = 1e-12
_A_C, _B_C, _A_N, _B_N, _A_R, _B_R, _GAMMA = range(7)


@dataclass(frozen=True)
class StepMeasurement:
    """The measured duration of steps.

    Attributes:
        nodes, replicas: the placement.
        atomic: samples of a replica's pass.
        step_seconds: seconds of a pass and the exchange after it.
        grad_seconds: seconds of a pass without exchange; None if it was not measured.
    """

    nodes: int
    replicas: int
    atomic: int
    step_seconds: float
    grad_seconds: float | None = None


def fit_step_times(measurements: Iterable[StepMeasurement]) -> PerfParams:
    """The parameters that explain the measurements best.

    Args:
        measurements: in any order. Impossible ones (no number, not above 0, more nodes than replicas) are
            ignored.

    Raises:
        InvalidError: no measurement is possible.
    """
    medians = _merged([measurement for measurement in measurements if _possible(measurement)])
    if not medians:
        raise InvalidError(
            "no measurement of a step can be used: "
            "give at least one with 1 <= nodes <= replicas, and seconds above 0"
        )
    data = _Data.of(medians)
    values = portable_exp(_solved(data)).tolist()
    if not data.several.any():
        values[_A_N], values[_B_N] = _INTER_NODE * values[_A_R], _INTER_NODE * values[_B_R]
    values[_GAMMA] = min(max(values[_GAMMA], 1.0), MAX_GAMMA)  # rounding may have exceeded the bounds
    return PerfParams(*values)


class FitCache:
    """Fits shared by several jobs: the same measurements are fitted once."""

    def __init__(self) -> None:
        self._fitted: dict[frozenset[StepMeasurement], PerfParams] = {}

    def fit(self, measurements: Iterable[StepMeasurement]) -> PerfParams:
        """`fit_step_times` of these measurements."""
        key = frozenset(measurements)
        if key not in self._fitted:
            self._fitted[key] = fit_step_times(key)
        return self._fitted[key]


def _possible(measurement: StepMeasurement) -> bool:
    numbers = (measurement.nodes, measurement.replicas, measurement.atomic, measurement.step_seconds)
    return (
        all(isfinite(number) and number > 0 for number in numbers)
        and 1 <= measurement.nodes <= measurement.replicas
    )


def _merged(measurements: Sequence[StepMeasurement]) -> list[StepMeasurement]:
    """One measurement, the median, for each distinct placement and batch."""
    groups: dict[tuple[int, int, int], list[StepMeasurement]] = {}
    for measurement in measurements:
        groups.setdefault((min(measurement.nodes, 2), measurement.replicas, measurement.atomic), []).append(
            measurement
        )
    return [
        StepMeasurement(*key, median(measurement.step_seconds for measurement in group), _grad_seconds(group))
        for key, group in sorted(groups.items())
    ]


def _grad_seconds(group: Sequence[StepMeasurement]) -> float | None:
    seconds = [
        measurement.step_seconds if measurement.replicas == 1 else measurement.grad_seconds
        for measurement in group
    ]
    sound = [value for value in seconds if value is not None and isfinite(value) and value > 0]
    return median(sound) if sound else None


@dataclass(frozen=True)
class _Data:
    """Measurements as arrays, and the start values of the parameters.

    Attributes:
        several, multiple: whether there are several nodes; whether there are several replicas.
        beyond: replicas beyond two.
        atomic: samples of a pass.
        log_step, log_grad: logarithms of the seconds; `log_grad` has known values only.
        has_grad: whether the pass was measured.
        start: first guess of the parameters' logarithms; gamma's is replaced.
        free: which parameters are fitted.
    """

    several: NDArray[np.bool_]
    multiple: NDArray[np.bool_]
    beyond: Floats
    atomic: Floats
    log_step: Floats
    log_grad: Floats
    has_grad: NDArray[np.bool_]
    start: Floats
    free: NDArray[np.bool_]

    @classmethod
    def of(cls, measurements: Sequence[StepMeasurement]) -> "_Data":
        nodes, replicas, atomic = np.array(
            [(measurement.nodes, measurement.replicas, measurement.atomic) for measurement in measurements]
        ).T
        step = np.array([measurement.step_seconds for measurement in measurements])
        has_grad = np.array([measurement.grad_seconds is not None for measurement in measurements])
        grad = np.array([measurement.grad_seconds or 1.0 for measurement in measurements])
        several, multiple = nodes > 1, replicas > 1
        passes = np.where(has_grad, grad, step / 2)  # a guess if only the sum is known
        within = multiple & ~several
        start, free = np.full(7, portable_log(_LEAST)), np.zeros(7, dtype=bool)
        start[_A_C] = portable_log(_mean(passes) / 2)
        start[_B_C] = portable_log(_mean(passes / atomic) / 2)
        free[_A_C], free[_B_C] = len(set(atomic.tolist())) > 1, True
        for mask, alpha, beta in ((several, _A_N, _B_N), (within, _A_R, _B_R)):
            if mask.any():
                exchange = _mean(np.maximum(step - passes, 0.05 * step)[mask])
                start[alpha], start[beta] = portable_log([exchange, 0.1 * exchange])
                free[alpha], free[beta] = True, len(set(replicas[mask].tolist())) > 1
                start[beta] = start[beta] if free[beta] else portable_log(_LEAST)
        free[_GAMMA] = multiple.any()
        beyond = np.maximum(replicas - 2, 0).astype(float)
        logs = portable_log(step), portable_log(grad[has_grad])
        return cls(several, multiple, beyond, atomic.astype(float), *logs, has_grad, start, free)


def _solved(data: _Data) -> Floats:
    """Levenberg–Marquardt from all starts at once; the logarithms of the best parameters.

    The starts are the first axis of the arrays: three small problems at once take little longer than one.
    """
    low, high = np.full(7, portable_log(_LEAST)), np.full(7, np.inf)
    low[_GAMMA], high[_GAMMA] = 0.0, portable_log(MAX_GAMMA)
    now = np.tile(data.start, (len(_GAMMAS), 1))
    now[:, _GAMMA] = portable_log(_GAMMAS) if data.free[_GAMMA] else 0.0
    errors, slopes = _errors(data, now)
    # Errors are scaled so that the number of measurements does not matter.
    limit = _HUBER / sqrt(len(data.log_step))
    cost, damping = _cost(errors, limit), np.full(len(now), 1e-3)
    going = np.arange(len(now))
    for _ in range(_ITERATIONS):
        tried = now[going]
        tried[:, data.free] += _step(errors[going], slopes[going], damping[going], limit)
        tried = np.minimum(np.maximum(tried, low), high)
        new_errors, new_slopes = _errors(data, tried)
        new_cost, old_cost = _cost(new_errors, limit), cost[going]
        better = new_cost < old_cost
        settled = better & (old_cost - new_cost <= _ENOUGH * old_cost)
        taken = going[better]
        now[taken], cost[taken] = tried[better], new_cost[better]
        errors[taken], slopes[taken] = new_errors[better], new_slopes[better]
        damping[going] *= np.where(better, 1 / 3, 4.0)
        going = going[~settled & (better | (damping[going] <= 1 / _LEAST))]
        if not len(going):
            break
    best: Floats = now[cost.argmin()]
    return best


def _step(errors: Floats, slopes: Floats, damping: Floats, limit: float) -> Floats:
    """The damped step to the minimum of the linearized errors, for each start."""
    weights = np.minimum(1.0, limit / np.maximum(np.abs(errors), _LEAST))
    weighted = weights[:, :, None] * slopes
    normal = ordered_sum(weighted[:, :, :, None] * slopes[:, :, None, :], 1)
    size = normal.shape[-1]
    diagonal = np.arange(size)
    normal[:, diagonal, diagonal] += damping[:, None] * (normal[:, diagonal, diagonal] + _LEAST) + _ENOUGH
    step = solve_positive(normal, -ordered_sum(weighted * errors[:, :, None], 1), _ENOUGH)
    bounded: Floats = np.minimum(np.maximum(step, -3.0), 3.0)  # a linear guess is good for a factor of 20
    return bounded


def _errors(data: _Data, logs: Floats) -> tuple[Floats, Floats]:
    """Errors of the logarithms and of the assumptions, and their derivatives by the free parameters.

    Args:
        data: the measurements.
        logs: starts × parameters.
    """
    parameters = portable_exp(logs)
    a_c, b_c, a_n, b_n, a_r, b_r, gamma = parameters.T[:, :, None]
    grad_alpha, grad_beta = a_c, b_c * data.atomic
    grad = grad_alpha + grad_beta
    sync_alpha = np.where(data.several, a_n, a_r)
    sync_beta = np.where(data.several, b_n, b_r) * data.beyond
    sync = sync_alpha + sync_beta
    log_grad, log_sync = portable_log([grad, sync])
    # T_opt^γ = T_grad^γ + T_sync^γ; `part` is the exchange's share of it.
    ratio = np.where(data.multiple, gamma * (log_sync - log_grad), -np.inf)
    smaller = portable_exp(-np.abs(ratio))
    both = np.maximum(ratio, 0.0) + portable_log(1.0 + smaller)
    part = np.where(ratio > 0, 1.0, smaller) / (1.0 + smaller)
    grad_slopes = np.zeros((*grad.shape, 7))
    grad_slopes[:, :, _A_C], grad_slopes[:, :, _B_C] = grad_alpha / grad, grad_beta / grad
    step_slopes = (1 - part)[:, :, None] * grad_slopes
    for column, values in ((_A_N, sync_alpha), (_B_N, sync_beta)):
        slope = part * (values / sync)
        step_slopes[:, :, column] = np.where(data.several, slope, 0.0)
        step_slopes[:, :, column + 2] = np.where(data.several, 0.0, slope)
    finite = np.where(data.multiple, ratio, 0.0)
    step_slopes[:, :, _GAMMA] = np.where(data.multiple, part * finite - both, 0.0) / gamma
    prior, prior_slopes = _assumptions(parameters)
    scale = 1.0 / sqrt(len(data.log_step))
    errors = [
        scale * (log_grad[:, data.has_grad] - data.log_grad),
        scale * (log_grad + both / gamma - data.log_step),
        prior,
    ]
    slopes = [scale * grad_slopes[:, data.has_grad], scale * step_slopes, prior_slopes]
    return np.concatenate(errors, axis=1), np.concatenate(slopes, axis=1)[:, :, data.free]


def _assumptions(values: Floats) -> tuple[Floats, Floats]:
    """Errors of the assumption that γ − 1 and β / α are small, and their derivatives by the logarithms."""
    gamma = values[:, _GAMMA]
    between, within = np.minimum(values[:, [_B_N, _B_R]] / values[:, [_A_N, _A_R]], _MOST_GROWTH).T
    slopes = np.zeros((len(values), 3, 7))
    slopes[:, 0, _GAMMA] = gamma
    slopes[:, 1, _A_N], slopes[:, 1, _B_N] = -between, between
    slopes[:, 2, _A_R], slopes[:, 2, _B_R] = -within, within
    return _PRIOR * np.stack([gamma - 1, between, within], axis=1), _PRIOR * slopes


def _cost(errors: Floats, limit: float) -> Floats:
    """The Huber loss of each start."""
    size = np.abs(errors)
    return ordered_sum(np.where(size <= limit, size * size / 2, limit * (size - limit / 2)), 1)


def _mean(values: Floats) -> float:
    return fsum(values.tolist()) / len(values)
