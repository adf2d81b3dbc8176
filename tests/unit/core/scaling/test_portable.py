"""Elementary functions made of operations that IEEE 754 prescribes."""

import math
from random import Random

import numpy as np
import pytest

from edl_workflows.core.scaling.portable_math import (
    ordered_sum,
    portable_exp,
    portable_log,
    portable_power,
    solve_positive,
)

CHANCE = Random(1)
CLOSE = 4e-15


def test_exponentials_are_right_to_their_last_digits() -> None:
    """Results are right to their last digits over the whole range of floats and near 0."""
    exponents = [CHANCE.uniform(-700, 700) for _ in range(2000)] + [
        CHANCE.uniform(-1, 1) for _ in range(2000)
    ]
    assert portable_exp(exponents).tolist() == pytest.approx([math.exp(one) for one in exponents], rel=CLOSE)


def test_exponentials_at_their_ends() -> None:
    """The result is 1 for 0 and 0 below the range of floats; just above, it is the smallest float."""
    assert portable_exp([0.0, -0.0, -745.0, -750.0, -math.inf]).tolist() == [1.0, 1.0, 5e-324, 0.0, 0.0]


def test_logarithms_are_right_to_their_last_digits() -> None:
    """Results are right to their last digits over the whole range of floats and near 1, where the result is
    near 0."""
    values = [math.exp(CHANCE.uniform(-700, 700)) for _ in range(2000)]
    values += [1 + CHANCE.uniform(-0.01, 0.01) for _ in range(2000)] + [5e-324, 1e-310, 1.7e308]
    assert portable_log(values).tolist() == pytest.approx([math.log(one) for one in values], rel=CLOSE)
    assert portable_log(1.0) == 0.0


def test_powers_are_right_to_their_last_digits() -> None:
    """Results are right to their last digits for bases from 0 on, including 0."""
    bases = [CHANCE.uniform(0, 2) for _ in range(2000)]
    for exponent in (0.1, 1.25, 4.0, -1.5):
        assert portable_power(bases, exponent).tolist() == pytest.approx(
            [one**exponent for one in bases], rel=CLOSE
        )
    assert portable_power([0.0, 1.0], 2.0).tolist() == [0.0, 1.0]
    assert portable_power([0.0, 1.0], -1.0).tolist() == [math.inf, 1.0]


def test_sums_go_from_the_first_to_the_last() -> None:
    """Numbers are added in the order of the array, which decides what is lost beside a large number."""
    assert ordered_sum(np.array([[1e16, 1.0, 1.0], [1.0, 1.0, 1e16]]), 1).tolist() == [1e16, 1e16 + 2]
    assert ordered_sum(np.ones((4, 2)), 0).tolist() == [4.0, 4.0]
    assert ordered_sum(np.ones((0, 2)), 0).tolist() == [0.0, 0.0]


def test_systems_of_equations_are_solved() -> None:
    """Several systems of equations are solved at once, as NumPy does."""
    random = np.random.default_rng(1)
    slopes = random.random((3, 9, 7))
    matrices = slopes.transpose(0, 2, 1) @ slopes + 0.01 * np.eye(7)
    right = random.random((3, 7))
    found = solve_positive(matrices, right, 1e-12)
    assert np.allclose(found, np.linalg.solve(matrices, right[:, :, None])[:, :, 0])


def test_a_pivot_that_rounding_has_lost_is_the_least() -> None:
    """A matrix that rounding has made not quite positive still has a solution of finite numbers."""
    found = solve_positive(np.ones((1, 2, 2)), np.ones((1, 2)), 1e-12)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("found", "bits"),
    [
        pytest.param(portable_exp(0.7), "0x1.01c2a61268987p+1", id="exp"),
        pytest.param(portable_log(0.7), "-0x1.6d3c324e13f4fp-2", id="log"),
        pytest.param(portable_power(0.7, 1.1), "0x1.59d79103a1fbap-1", id="power"),
    ],
)
def test_bits(found: float, bits: str) -> None:
    """Results are the same to the bit on every machine."""
    assert float(found).hex() == bits
