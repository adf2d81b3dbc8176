"""Floating-point functions with the same result, to the last bit, on every machine.

IEEE 754 prescribes the results of addition, subtraction, multiplication, division, square root and rounding
to a whole number. It does not prescribe those of `exp`, `log` and powers: NumPy and the C library choose an
implementation by the CPU's instructions, and the last digits differ. So does the order in which BLAS and
LAPACK add, which depends on the CPU and the number of threads. Python's own `sum` of floats changed in 3.12.
Two allocations can be worth nearly the same, so that the last digit decides between them, and with it the
course of a simulated day.

The functions here use only operations with prescribed results, in a fixed order, each in a NumPy call of its
own (a compiler could fuse two operations into one that rounds once). Their relative errors are about 1e-15.
Plain floats are summed with `math.fsum`, which is exact except for the last rounding.
"""

from collections.abc import Sequence
from math import factorial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# The natural logarithm of 2 as the sum of two numbers: the product of the first with a whole number below
# 2^20 is exact.
_LOG_2_HIGH: Final = 0x162E42FEF / 2**33
_LOG_2_LOW: Final = 7.440617110012397e-11
_BITS_PER_E: Final = 1.4426950408889634
_SQRT_HALF: Final = 0.7071067811865476
_LEAST_EXPONENT: Final = -800.0
"""The exponential of this and of anything less is 0."""
_MOST_EXPONENT: Final = 800.0
"""The exponential of this and of anything more is infinite."""
_EXP_SERIES: Final = [1.0 / factorial(number) for number in range(14)]
"""Taylor series: for exponents up to log(2) / 2 the next term is below 1e-17."""
_LOG_SERIES: Final = [2.0 / (2 * number + 1) for number in range(12)]
"""Series of log((1 + s) / (1 - s)) / s in s²: for s² up to 0.03 the next term is below 1e-19."""


def portable_exp(exponents: ArrayLike) -> Floats:
    """The exponential of each; 0 for -inf."""
    limited = np.clip(np.asarray(exponents, dtype=float), _LEAST_EXPONENT, _MOST_EXPONENT)
    doublings = np.rint(limited * _BITS_PER_E)
    rest = limited - doublings * _LOG_2_HIGH
    rest = rest - doublings * _LOG_2_LOW
    exponential: Floats = np.ldexp(_polynomial(_EXP_SERIES, rest), doublings.astype(np.int32))
    return exponential


def portable_log(values: ArrayLike) -> Floats:
    """The natural logarithm of each value; all must be above 0 and finite."""
    fraction, doublings = np.frexp(np.asarray(values, dtype=float))
    low = fraction < _SQRT_HALF
    fraction = np.where(low, 2.0 * fraction, fraction)
    powers = np.where(low, doublings - 1, doublings).astype(float)
    quotient = (fraction - 1.0) / (fraction + 1.0)
    logarithm: Floats = quotient * _polynomial(_LOG_SERIES, quotient * quotient)
    logarithm += powers * _LOG_2_LOW
    logarithm += powers * _LOG_2_HIGH
    return logarithm


def portable_power(bases: ArrayLike, exponent: float) -> Floats:
    """Raise each base to a power; 0 to a negative power is infinite.

    Args:
        bases: finite and at least 0.
        exponent: other than 0.
    """
    values = np.asarray(bases, dtype=float)
    above = values > 0.0
    of_those_above = portable_exp(exponent * portable_log(np.where(above, values, 1.0)))
    powers: Floats = np.where(above, of_those_above, 0.0 if exponent > 0 else np.inf)
    return powers


def ordered_sum(values: Floats, axis: int) -> Floats:
    """The sum along an axis, added up from the first item to the last."""
    if not values.shape[axis]:
        return np.zeros(np.delete(values.shape, axis))
    running: Floats = np.moveaxis(np.add.accumulate(values, axis=axis), axis, 0)
    total: Floats = running[-1]
    return total


def solve_positive(matrices: Floats, right: Floats, least_pivot: float) -> Floats:
    """Solve linear systems with symmetric, positive definite matrices by Gauss–Jordan elimination.

    Args:
        matrices: systems × rows × columns.
        right: the right-hand sides, systems × rows.
        least_pivot: a lower bound of all eigenvalues; pivots that rounding made smaller are raised to it.

    Returns:
        The solutions, systems × rows.
    """
    table = np.concatenate([matrices, right[:, :, None]], axis=2)
    size = right.shape[1]
    for row in range(size):
        pivot = np.maximum(table[:, row, row], least_pivot)
        line = table[:, row, row:] / pivot[:, None]
        factors = table[:, :, row].copy()
        factors[:, row] = 0.0
        table[:, :, row:] -= factors[:, :, None] * line[:, None, :]
        table[:, row, row:] = line
    return table[:, :, size]


def _polynomial(coefficients: Sequence[float], values: Floats) -> Floats:
    """Evaluate a polynomial by Horner's rule; the coefficients are in the order of the powers."""
    polynomial = np.full_like(values, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        polynomial *= values
        polynomial += coefficient
    return polynomial
