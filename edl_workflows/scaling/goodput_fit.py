"""How a job's step times are learnt from what was measured: the parameters of `edl_workflows.scaling.goodput`.

Least squares of the logarithms, so that a short step counts as much as a long one, by Levenberg and Marquardt's method over
the parameters' logarithms, so that none gets negative. Measurements of the same placement and batch count by their median,
and one that is more than a tenth off counts by its distance, not by its square (Huber), so that a straggler does not spoil it.

What the data can't tell is assumed, and optimistically, so that a job is tried with more (OSDI'21, §4.1, and AdaptDL):

- one batch size only: half of a pass is constant;
- never more than two replicas: the exchange does not grow with them;
- never several replicas on one node: there the exchange takes no time;
- never several nodes: between nodes it takes 1.1 times as long as within one;
- else: little overlap, and little growth by replica.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

import numpy as np
from numpy.typing import NDArray

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.goodput import MAX_GAMMA, PerfParams

Floats = NDArray[np.float64]

_LEAST = 1e-8
"""Seconds; stands for none."""
_INTER_NODE = 1.1
_HUBER = 0.1
_PRIOR = 1e-3
"""Root of what assumptions weigh, against errors of logarithms: what 1 % noise in the data says is stronger."""
_GAMMAS = (1.1, 2.0, 5.0)
"""Where the search starts: the overlap is what makes it have several optima."""
_ITERATIONS = 100
_ENOUGH = 1e-12
_A_C, _B_C, _A_N, _B_N, _A_R, _B_R, _GAMMA = range(7)


@dataclass(frozen=True)
class Measurement:
    """How long steps took.

    Attributes:
        nodes, replicas: the placement.
        atomic: samples of a replica's pass.
        step_seconds: of a pass and the exchange after it.
        grad_seconds: of a pass without exchange; None if it was not measured.
    """

    nodes: int
    replicas: int
    atomic: int
    step_seconds: float
    grad_seconds: float | None = None


def fit(measurements: Iterable[Measurement]) -> PerfParams:
    """The parameters that explain the measurements best.

    Args:
        measurements: in any order. Those that can't be (no number, not above 0, more nodes than replicas) are left out.

    Raises:
        InvalidError: there is none that can be.
    """
    rows = _merged([one for one in measurements if _possible(one)])
    if not rows:
        raise InvalidError(
            "no measurement of a step can be used: give at least one with 1 <= nodes <= replicas, and seconds above 0"
        )
    data = _Data.of(rows)
    found = min((_solved(data, gamma) for gamma in _GAMMAS), key=lambda solved: solved[1])[0]
    values = np.exp(found).tolist()
    if not data.several.any():
        values[_A_N], values[_B_N] = _INTER_NODE * values[_A_R], _INTER_NODE * values[_B_R]
    values[_GAMMA] = min(max(values[_GAMMA], 1.0), MAX_GAMMA)  # a rounding error beyond
    return PerfParams(*values)


def _possible(one: Measurement) -> bool:
    numbers = (one.nodes, one.replicas, one.atomic, one.step_seconds)
    return all(isfinite(number) and number > 0 for number in numbers) and 1 <= one.nodes <= one.replicas


def _merged(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One row, the median, for each placement and batch that makes a difference."""
    groups: dict[tuple[int, int, int], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((min(one.nodes, 2), one.replicas, one.atomic), []).append(one)
    return [
        Measurement(*key, median(one.step_seconds for one in group), _grad_seconds(group))
        for key, group in sorted(groups.items())
    ]


def _grad_seconds(group: Sequence[Measurement]) -> float | None:
    known = [one.step_seconds if one.replicas == 1 else one.grad_seconds for one in group]
    sound = [value for value in known if value is not None and isfinite(value) and value > 0]
    return median(sound) if sound else None


@dataclass(frozen=True)
class _Data:
    """Rows as arrays, and what the parameters may be.

    Attributes:
        several, multiple: whether on several nodes; whether several replicas.
        beyond: replicas beyond two.
        atomic, step, grad: as measured; grad is 1 where `known` is false.
        known: whether grad was measured.
        start: first guess of the parameters' logarithms; gamma's is replaced.
        free: which of them are sought.
    """

    several: NDArray[np.bool_]
    multiple: NDArray[np.bool_]
    beyond: Floats
    atomic: Floats
    step: Floats
    grad: Floats
    known: NDArray[np.bool_]
    start: Floats
    free: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Measurement]) -> "_Data":
        """What the rows tell."""
        nodes, replicas, atomic = np.array([(row.nodes, row.replicas, row.atomic) for row in rows]).T
        step = np.array([row.step_seconds for row in rows])
        known = np.array([row.grad_seconds is not None for row in rows])
        grad = np.array([row.grad_seconds or 1.0 for row in rows])
        several, multiple = nodes > 1, replicas > 1
        passes = np.where(known, grad, step / 2)  # a guess, where only both together are known
        within = multiple & ~several
        start, free = np.full(7, np.log(_LEAST)), np.zeros(7, dtype=bool)
        start[_A_C] = np.log(passes.mean() / 2)
        start[_B_C] = np.log((passes / atomic).mean() / 2)
        free[_A_C], free[_B_C] = len(set(atomic.tolist())) > 1, True
        for rows_of, alpha, beta in ((several, _A_N, _B_N), (within, _A_R, _B_R)):
            if rows_of.any():
                exchange = np.maximum(step - passes, 0.05 * step)[rows_of].mean()
                start[alpha], start[beta] = np.log(exchange), np.log(0.1 * exchange)
                free[alpha], free[beta] = True, bool((replicas[rows_of] > 2).any())
                start[beta] = start[beta] if free[beta] else np.log(_LEAST)
        free[_GAMMA] = multiple.any()
        beyond = np.maximum(replicas - 2, 0).astype(float)
        return cls(several, multiple, beyond, atomic.astype(float), step, grad, known, start, free)


def _solved(data: _Data, gamma: float) -> tuple[Floats, float]:
    """Levenberg-Marquardt from a start; the parameters' logarithms, and what is left."""
    low, high = np.full(7, np.log(_LEAST)), np.full(7, np.inf)
    low[_GAMMA], high[_GAMMA] = 0.0, np.log(MAX_GAMMA)
    now = data.start.copy()
    now[_GAMMA] = np.log(gamma) if data.free[_GAMMA] else 0.0
    errors, slopes = _errors(data, now)
    limit = _HUBER * len(data.step) ** -0.5  # errors are divided so, that many rows weigh as much as few
    cost, damping = _cost(errors, limit), 1e-3
    for _ in range(_ITERATIONS):
        weights = np.minimum(1.0, limit / np.maximum(np.abs(errors), _LEAST))
        normal = slopes.T @ (weights[:, None] * slopes)
        step = np.linalg.solve(
            normal + damping * np.diag(np.diag(normal) + _LEAST) + _ENOUGH * np.eye(len(normal)),
            -slopes.T @ (weights * errors),
        )
        tried = now.copy()
        tried[data.free] += step.clip(-3.0, 3.0)  # a factor of 20 is as far as a linear guess goes
        tried = tried.clip(low, high)
        new_errors, new_slopes = _errors(data, tried)
        if (new_cost := _cost(new_errors, limit)) < cost:
            settled = cost - new_cost <= _ENOUGH * cost
            now, errors, slopes, cost, damping = tried, new_errors, new_slopes, new_cost, damping / 3
            if settled:
                break
        elif (damping := damping * 4) > 1 / _LEAST:
            break
    return now, cost


def _errors(data: _Data, logs: Floats) -> tuple[Floats, Floats]:
    """Errors of the logarithms of passes and steps, and of the assumptions; and their slopes by the free parameters."""
    a_c, b_c, a_n, b_n, a_r, b_r, gamma = np.exp(logs)
    count = len(data.step)
    grad = a_c + b_c * data.atomic
    grad_slopes = np.zeros((count, 7))
    grad_slopes[:, _A_C], grad_slopes[:, _B_C] = a_c / grad, b_c * data.atomic / grad
    sync = np.where(data.several, a_n + b_n * data.beyond, a_r + b_r * data.beyond)
    sync_slopes = np.zeros((count, 7))
    for rows, alpha, beta in ((data.several, _A_N, _B_N), (~data.several, _A_R, _B_R)):
        values = np.exp(logs[[alpha, beta]])
        sync_slopes[rows, alpha] = values[0] / sync[rows]
        sync_slopes[rows, beta] = values[1] * data.beyond[rows] / sync[rows]
    # T_opt^γ = T_grad^γ + T_sync^γ; `part` is what the exchange is of it.
    ratio = np.where(data.multiple, gamma * (np.log(sync) - np.log(grad)), -np.inf)
    log_step = np.log(grad) + np.logaddexp(0.0, ratio) / gamma
    part = np.exp(ratio - np.logaddexp(0.0, ratio))
    step_slopes = (1 - part)[:, None] * grad_slopes + part[:, None] * sync_slopes
    finite = np.where(data.multiple, ratio, 0.0)
    step_slopes[:, _GAMMA] = np.where(data.multiple, part * finite - np.logaddexp(0.0, ratio), 0.0) / gamma
    prior, prior_slopes = _assumptions(logs)
    scale = count**-0.5
    errors = [
        scale * (np.log(grad) - np.log(data.grad))[data.known],
        scale * (log_step - np.log(data.step)),
        prior,
    ]
    slopes = [scale * grad_slopes[data.known], scale * step_slopes, prior_slopes]
    return np.concatenate(errors), np.concatenate(slopes)[:, data.free]


def _assumptions(logs: Floats) -> tuple[Floats, Floats]:
    """γ − 1 and β / α of both kinds of exchange are small."""
    gamma, between, within = np.exp(
        [logs[_GAMMA], min(logs[_B_N] - logs[_A_N], 5.0), min(logs[_B_R] - logs[_A_R], 5.0)]
    )
    slopes = np.zeros((3, 7))
    slopes[0, _GAMMA] = gamma
    slopes[1, [_A_N, _B_N]] = -between, between
    slopes[2, [_A_R, _B_R]] = -within, within
    return _PRIOR * np.array([gamma - 1, between, within]), _PRIOR * slopes


def _cost(errors: Floats, limit: float) -> float:
    """Huber's."""
    size = np.abs(errors)
    return float(np.where(size <= limit, size**2 / 2, limit * (size - limit / 2)).sum())
