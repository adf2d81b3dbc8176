"""Arithmetic with the same result, to the last bit, on every machine.

IEEE 754 prescribes the results of addition, subtraction, multiplication, division, square root and rounding to a whole number. It
does not prescribe those of `exp`, `log` and powers: NumPy and the C library choose an implementation by the CPU's instructions, and
their last digits differ. So does the order in which BLAS and LAPACK add, which depends on the CPU and the number of threads. Python's
own `sum` of floats changed in 3.12. An allocation can be worth nearly as much as another, so that one such digit decides between
them, and with it how a simulated day goes on.

The functions here use only operations whose results are prescribed, each in a NumPy call of its own (a compiler could fuse two into
one that rounds once), in an order that is written down. Their relative errors are about 1e-15. Sums of plain floats are
`math.fsum`'s, which are exact but for the last rounding.
"""

from collections.abc import Sequence
from math import factorial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# The natural logarithm of 2 as the sum of two numbers: the product of the first with a whole number below 2^20 is exact.
_LOG_2_HIGH: Final = 0x162E42FEF / 2**33
_LOG_2_LOW: Final = 7.440617110012397e-11
_BITS_PER_E: Final = 1.4426950408889634
_SQRT_HALF: Final = 0.7071067811865476
_LEAST_EXPONENT: Final = -800.0
"""The exponential of what is less is 0, as is this one's."""
_MOST_EXPONENT: Final = 800.0
"""The exponential of what is more is infinite, as is this one's."""
_EXP_SERIES: Final = [1.0 / factorial(number) for number in range(14)]
"""Taylor's: for exponents up to log(2) / 2 the next term is below 1e-17."""
_LOG_SERIES: Final = [2.0 / (2 * number + 1) for number in range(12)]
"""Of log((1 + s) / (1 - s)) / s, by s²: for s² up to 0.03 the next term is below 1e-19."""


def portable_exp(exponents: ArrayLike) -> Floats:
    """The exponential of each; 0 for -inf."""
    limited = np.clip(np.asarray(exponents, dtype=float), _LEAST_EXPONENT, _MOST_EXPONENT)
    doublings = np.rint(limited * _BITS_PER_E)
    rest = limited - doublings * _LOG_2_HIGH
    rest = rest - doublings * _LOG_2_LOW
    found: Floats = np.ldexp(_polynomial(_EXP_SERIES, rest), doublings.astype(np.int32))
    return found


def portable_log(values: ArrayLike) -> Floats:
    """The natural logarithm of each; all are above 0 and finite."""
    fraction, doublings = np.frexp(np.asarray(values, dtype=float))
    low = fraction < _SQRT_HALF
    fraction = np.where(low, 2.0 * fraction, fraction)
    powers = np.where(low, doublings - 1, doublings).astype(float)
    quotient = (fraction - 1.0) / (fraction + 1.0)
    found: Floats = quotient * _polynomial(_LOG_SERIES, quotient * quotient)
    found += powers * _LOG_2_LOW
    found += powers * _LOG_2_HIGH
    return found


def portable_power(bases: ArrayLike, exponent: float) -> Floats:
    """Each base, which is finite and at least 0, to the power of an exponent other than 0; 0 to a negative power is infinite."""
    values = np.asarray(bases, dtype=float)
    above = values > 0.0
    of_those_above = portable_exp(exponent * portable_log(np.where(above, values, 1.0)))
    found: Floats = np.where(above, of_those_above, 0.0 if exponent > 0 else np.inf)
    return found


def ordered_sum(values: Floats, axis: int) -> Floats:
    """The sum along an axis, from its first item to its last."""
    if not values.shape[axis]:
        return np.zeros(np.delete(values.shape, axis))
    running: Floats = np.moveaxis(np.add.accumulate(values, axis=axis), axis, 0)
    found: Floats = running[-1]
    return found


def solve_positive(matrices: Floats, right: Floats, least_pivot: float) -> Floats:
    """The solutions of systems of linear equations whose matrices are symmetric and positive definite (Gauss and Jordan).

    Args:
        matrices: systems × rows × columns.
        right: systems × rows.
        least_pivot: what no eigenvalue is below; rounding could make a pivot less.

    Returns:
        Systems × rows.
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
    """By Horner's rule; the coefficients in the order of the powers."""
    found = np.full_like(values, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found *= values
        found += coefficient
    return found
