"""Goodput: the rate of useful training of a data-parallel job, as Pollux (OSDI'21, §3) models it.

Goodput is throughput times statistical efficiency. Throughput follows from the duration of a step on a number
of nodes and replicas, efficiency from the noise of the gradients: the noisier they are, the more a larger
batch is worth.

A step of K replicas, each with an atomic batch of m samples, accumulated over s passes before the gradients
are exchanged::

    T_grad = alpha_c + beta_c · m                             one forward and backward pass
    T_sync = 0                                  for K = 1     the exchange of the gradients,
             alpha_r + beta_r · max(K − 2, 0)   on one node     within a node,
             alpha_n + beta_n · max(K − 2, 0)   on several      or between nodes
    T_opt  = (T_grad^γ + T_sync^γ)^(1/γ)                      the last pass, which overlaps with the exchange
    T      = s · T_grad + T_opt

With γ = 1 nothing overlaps; with γ → ∞ the shorter of both times is hidden. The model distinguishes only one
node from several, not their number.
"""

from dataclasses import dataclass, fields
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.portable_math import Floats, portable_exp, portable_log, portable_power

Ints = NDArray[np.int64]

MAX_GAMMA = 10.0
"""The largest γ. With it, T_opt is within 7 % of the longer of both times, which is close to a perfect
overlap."""

_CANDIDATES = 50
"""The number of batch sizes that are tried, in geometric steps; over a range of 1:100 a step is a tenth."""
_SLACK = 1e-8
"""The rounding error of quotients such as 3 · (1/3) is smaller."""


@dataclass(frozen=True)
class PerfParams:
    """The durations of a job's steps; see the module for the formulae.

    Attributes:
        alpha_c, beta_c: seconds of a pass, and additional seconds per sample of the atomic batch.
        alpha_n, beta_n: seconds of an exchange between nodes, and additional seconds per replica beyond two.
        alpha_r, beta_r: the same within one node.
        gamma: how far pass and exchange overlap, 1 to 10.

    Raises:
        InvalidError: a time is negative or not a number, alpha_c and beta_c are both 0, or gamma is out of
            its range.
    """

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float

    def __post_init__(self) -> None:
        for parameter in fields(self):
            _check(parameter.name, getattr(self, parameter.name))
        if not self.alpha_c + self.beta_c > 0:
            raise InvalidError("alpha_c and beta_c: both are 0, and a pass takes some time: fit them again")
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise InvalidError(f"gamma: {self.gamma} is not between 1 and {MAX_GAMMA:g}")


@dataclass(frozen=True)
class GradParams:
    """The noise of a job's gradients, at its initial batch size.

    Attributes:
        sqr: squared norm of the gradient's expectation.
        var: trace of its covariance.

    Raises:
        InvalidError: one is negative or not a number.
    """

    sqr: float
    var: float

    def __post_init__(self) -> None:
        _check("sqr", self.sqr)
        _check("var", self.var)


@dataclass(frozen=True)
class BatchLimits:
    """The batch sizes that a job may have.

    Attributes:
        initial: the user's batch size in samples, and the smallest one that is chosen.
        largest: the largest batch size in samples.
        atomic: the least and the most samples that one replica has in memory at once.
        accumulation: whether a replica may run several passes for one batch.

    Raises:
        InvalidError: a lower bound is below 1, or above its upper bound.
    """

    initial: int
    largest: int
    atomic: tuple[int, int]
    accumulation: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.initial <= self.largest:
            raise InvalidError(
                f"batch sizes: 1 <= initial ({self.initial}) <= largest ({self.largest}) must hold"
            )
        if not 1 <= self.atomic[0] <= self.atomic[1]:
            raise InvalidError(f"atomic batch sizes: 1 <= {self.atomic[0]} <= {self.atomic[1]} must hold")


@dataclass(frozen=True)
class BatchChoice:
    """The best batch for each placement; the arrays have the shape of the placements.

    Attributes:
        goodput: useful samples per second; 0 if no batch size is allowed.
        atomic: samples of a replica's pass.
        accumulation: passes before the last one.
    """

    goodput: Floats
    atomic: Ints
    accumulation: Ints


@dataclass(frozen=True)
class GoodputModel:
    """The goodput of one job; hashable, so that tables made from it can be cached."""

    perf: PerfParams
    grad: GradParams
    limits: BatchLimits

    def throughput(
        self, nodes: ArrayLike, replicas: ArrayLike, atomic: ArrayLike, accumulation: ArrayLike = 0
    ) -> Floats:
        """Samples per second.

        Args:
            nodes: number of nodes.
            replicas: number of replicas, at least as many.
            atomic: samples of a replica's pass.
            accumulation: passes before the last one.

        Returns:
            An array of the arguments' common shape.
        """
        passes = np.asarray(accumulation, dtype=float)
        seconds = passes * grad_seconds(self.perf, atomic) + step_seconds(self.perf, nodes, replicas, atomic)
        rate: Floats = np.asarray(replicas, dtype=float) * np.asarray(atomic) * (passes + 1) / seconds
        return rate

    def efficiency(self, batch: ArrayLike) -> Floats:
        """The worth of a sample in a batch of this size, relative to a sample in a batch of the initial size:
        0 to 1.

        With the noise scale φ = initial · var / sqr it is (φ + initial) / (φ + batch), Pollux's equation 7.
        """
        scale = np.maximum(np.asarray(batch, dtype=float) / self.limits.initial, 1.0)
        noise, signal = self.grad.var, self.grad.sqr
        if noise + signal <= 0:
            return 1.0 / scale  # no gradient: another sample is worth nothing
        return (noise + signal) / (noise + signal * scale)

    def goodput(
        self, nodes: ArrayLike, replicas: ArrayLike, atomic: ArrayLike, accumulation: ArrayLike = 0
    ) -> Floats:
        """Useful samples per second: throughput times efficiency."""
        batch = np.asarray(replicas, dtype=float) * np.asarray(atomic) * (np.asarray(accumulation) + 1)
        return self.throughput(nodes, replicas, atomic, accumulation) * self.efficiency(batch)

    def best(self, nodes: ArrayLike, replicas: ArrayLike) -> BatchChoice:
        """The batch with the highest goodput, for each placement.

        Args:
            nodes: number of nodes.
            replicas: number of replicas, at least as many; the shapes broadcast.

        Raises:
            InvalidError: a placement is not possible.
        """
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        if not np.all((nodes >= 1) & (nodes <= replicas)):
            raise InvalidError("a placement has at least one node, and at least as many replicas as nodes")
        # Candidates don't depend on the nodes, so they are computed for the replicas only.
        missing = np.broadcast(nodes, replicas).ndim - replicas.ndim
        atomic, accumulation = self._candidates(replicas.reshape((1,) * missing + replicas.shape))
        least, most = self.limits.atomic
        allowed = (least <= atomic) & (atomic <= most)
        rates = self.goodput(nodes, replicas, np.maximum(atomic, 1), accumulation)
        rates = np.where(allowed, rates, 0.0)
        chosen = np.argmax(rates, axis=0, keepdims=True)
        candidates = (np.broadcast_to(values, rates.shape) for values in (rates, atomic, accumulation))
        return BatchChoice(*(np.take_along_axis(values, chosen, axis=0)[0] for values in candidates))

    def _candidates(self, replicas: Ints) -> tuple[Ints, Ints]:
        """Candidates (first axis): atomic batch sizes, some out of bounds, and passes before the last."""
        limits = self.limits
        least = np.minimum(np.maximum(limits.initial, limits.atomic[0] * replicas), limits.largest)
        steps = np.arange(_CANDIDATES).reshape((-1,) + (1,) * replicas.ndim) / (_CANDIDATES - 1)
        sizes = least * portable_exp(steps * portable_log(limits.largest / least))
        sizes[-1] = limits.largest
        local = sizes / replicas
        passes = np.ones_like(local)
        if limits.accumulation:
            passes = np.maximum(np.ceil(local / limits.atomic[1] - _SLACK), 1.0)
            # Gradient noise is measured between passes, so one replica with a larger batch needs two.
            alone = (replicas == 1) & (local > limits.initial + _SLACK)
            passes = np.where(alone, np.maximum(passes, 2.0), passes)
        atomic = np.ceil(local / passes - _SLACK)
        atomic = np.minimum(atomic, np.floor(limits.largest / (replicas * passes) + _SLACK))
        return atomic.astype(np.int64), (passes - 1).astype(np.int64)


def grad_seconds(perf: PerfParams, atomic: ArrayLike) -> Floats:
    """T_grad."""
    return perf.alpha_c + perf.beta_c * np.asarray(atomic, dtype=float)


def sync_seconds(perf: PerfParams, nodes: ArrayLike, replicas: ArrayLike) -> Floats:
    """T_sync."""
    nodes, replicas = np.asarray(nodes), np.asarray(replicas)
    beyond = np.maximum(replicas - 2, 0)
    within = np.where(replicas > 1, perf.alpha_r + perf.beta_r * beyond, 0.0)
    return np.where(nodes > 1, perf.alpha_n + perf.beta_n * beyond, within)


def step_seconds(perf: PerfParams, nodes: ArrayLike, replicas: ArrayLike, atomic: ArrayLike) -> Floats:
    """T_opt."""
    grad, sync = np.broadcast_arrays(grad_seconds(perf, atomic), sync_seconds(perf, nodes, replicas))
    longer, shorter = np.maximum(grad, sync), np.minimum(grad, sync)
    # Powers of a ratio up to 1 can't overflow, whatever the unit.
    longer_by = portable_power(1.0 + portable_power(shorter / longer, perf.gamma), 1.0 / perf.gamma)
    seconds: Floats = longer * longer_by
    return seconds


def _check(name: str, value: float) -> None:
    if not (isfinite(value) and value >= 0):
        raise InvalidError(f"{name}: {value} is not a number from 0 up")
