"""Applications and their measured trainings."""

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.application import Application, BatchSplit, GradientNoise, ValidationTrace
from edl_workflows.simulator.throughput import StepTime, ThroughputTable

TABLE = ThroughputTable.of({(1,): {10: StepTime(1, 0)}}, {})


def digits(max_local_bsz: int = 20) -> Application:
    """An application measured with batches of 10 and 40."""
    validation = {
        10: ValidationTrace([100, 200], [100, 200], [1, 1], [3, 3]),
        40: ValidationTrace([101, 199], [50, 90], [2, 3], [9, 9]),
    }
    return Application("digits", validation, TABLE, min_local_bsz=5, max_local_bsz=max_local_bsz)


def test_epochs_end_where_the_first_training_ends_them() -> None:
    """The measured progress of an epoch differs between trainings, and the smallest counts."""
    assert [digits().progress_after(epochs) for epochs in range(3)] == [0, 100, 199]


def test_between_batches() -> None:
    """Gradients and iterations are interpolated linearly in the batch."""
    assert digits().gradient(25, 0) == GradientNoise(1.5, 6)
    assert digits().iterations(25, 1) == 145


def test_gain() -> None:
    """A pure signal gains nothing from a larger batch; pure noise gains in proportion."""
    assert GradientNoise(1, 0).gain(4) == 1
    assert GradientNoise(0, 1).gain(4) == 4
    assert GradientNoise(1, 3).gain(3) == 2


def test_a_gradient_that_vanished_gains_nothing() -> None:
    """A gradient of zero gives a gain of 1, without a division by zero."""
    assert GradientNoise(0, 0).gain(4) == 1


@pytest.mark.parametrize(
    ("batch_size", "replicas", "expected"),
    [
        pytest.param(40, 2, BatchSplit(20, 0), id="fits"),
        pytest.param(40, 3, BatchSplit(13, 0), id="rounded up, but not beyond the largest batch"),
        pytest.param(40, 1, BatchSplit(20, 1), id="accumulates"),
        pytest.param(15, 1, BatchSplit(8, 1), id="one replica accumulates to see the noise"),
        pytest.param(10, 1, BatchSplit(10, 0), id="not with the initial batch"),
        pytest.param(10, 20, BatchSplit(1, 0), id="more replicas than examples"),
    ],
)
def test_split(batch_size: int, replicas: int, expected: BatchSplit) -> None:
    """The batch is split into equal mini-batches that fit a GPU."""
    assert digits().split(batch_size, replicas) == expected


def test_trainings_of_different_length() -> None:
    """Trainings of different lengths are rejected as the measurements of one application."""
    validation = {
        10: ValidationTrace([1], [1], [1], [1]),
        20: ValidationTrace([1, 2], [1, 2], [1, 1], [1, 1]),
    }
    with pytest.raises(InvalidError, match=r"\[1, 2\] epochs"):
        Application("digits", validation, TABLE, min_local_bsz=5, max_local_bsz=20)
