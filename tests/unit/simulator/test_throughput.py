"""Step times, measured and interpolated."""

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.throughput import StepTime, StepTimeCurve, ThroughputTable, smallest_rotation


def flat(total: float, sync: float = 0.0) -> dict[int, StepTime]:
    """The same time for any batch."""
    return {10: StepTime(total, sync), 20: StepTime(total, sync)}


TABLE = ThroughputTable.of(
    {(1,): flat(1), (4,): flat(2), (1, 1): flat(3), (4, 4): flat(4), (1, 2): flat(5), (2, 1): flat(7)},
    {(4, 4): flat(6), (4, 16): flat(12)},
)


def test_a_measured_placement_is_itself() -> None:
    """A measured placement is not interpolated."""
    assert TABLE.step_time((4,), 10) == StepTime(2, 0)


@pytest.mark.parametrize("placement", [(1, 1, 2), (1, 2, 1), (2, 1, 1)])
def test_rotations_are_one_ring(placement: tuple[int, ...]) -> None:
    """The starting point of a ring does not matter."""
    assert smallest_rotation(placement) == (1, 1, 2)


def test_a_mirrored_ring_is_another() -> None:
    """The direction may matter, so both were measured."""
    assert smallest_rotation((1, 2, 3)) != smallest_rotation((1, 3, 2))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(10, StepTime(1, 0.5), id="measured"),
        pytest.param(15, StepTime(1.5, 0.75), id="between"),
        pytest.param(5, StepTime(1, 0.5), id="below: a step has a least time"),
        pytest.param(40, StepTime(4, 1), id="beyond: in proportion"),
    ],
)
def test_local_batch_size(size: int, expected: StepTime) -> None:
    """Step times are linear between measured sizes, and never optimistic outside of them."""
    assert StepTimeCurve.of({20: StepTime(2, 1), 10: StepTime(1, 0.5)}).at(size) == expected


@pytest.mark.parametrize(
    ("placement", "total"),
    [
        pytest.param((4, 4, 4, 4), 12, id="at a measured scale"),
        pytest.param((2, 2, 2, 4), 9, id="between numbers of replicas"),
        pytest.param((1, 1, 1), 4.5, id="between numbers of nodes, at one replica a node"),
        pytest.param((4, 4, 4), 8, id="the same at four"),
        pytest.param((4,) * 8, 12, id="beyond the largest: as that one, as full"),
    ],
)
def test_larger_placements(placement: tuple[int, ...], total: float) -> None:
    """Step times are linear in the replicas per node and in the number of nodes."""
    assert TABLE.step_time(placement, 10).total == pytest.approx(total)


def test_accumulation_exchanges_once() -> None:
    """Each additional mini-batch costs a step without the exchange."""
    assert StepTime(3, 1).accumulated(2) == 7


def test_nothing_measured() -> None:
    """An application without measurements is rejected."""
    with pytest.raises(InvalidError, match="no placement was measured"):
        ThroughputTable.of({}, {})
