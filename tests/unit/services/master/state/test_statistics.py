"""What nodes say about their speed, true or not."""

from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.state.statistics import Statistics

YEAR = 365 * 86_400.0


def _report(worker: int, step: int, time: float) -> StepReport:
    node = NodeRef(type="worker", id=worker)
    return StepReport(node=node, version=1, step=step, time=time, first_step_time=time)


def test_a_workers_clock_that_was_ahead_for_a_moment_costs_a_moment() -> None:
    """A report dated a year ahead and a correct one after it reset the measurement of speed; otherwise the
    speed would be one step a year."""
    statistics = Statistics()
    for step in range(1, 20):
        statistics.record_step(_report(0, step, 1_000.0 + step))
    statistics.record_step(_report(0, 20, 1_020.0 + YEAR))
    for step in range(21, 40):
        statistics.record_step(_report(0, step, 1_000.0 + step))
    assert statistics.speed == 1.0


def test_a_worker_whose_clock_is_behind_spoils_nothing() -> None:
    """If members' clocks are minutes apart, the measured speed is still that of one of them."""
    statistics = Statistics()
    for step in range(1, 40):
        statistics.record_step(_report(0, step, 1_000.0 + step))
        statistics.record_step(_report(1, step, 400.0 + step))
    assert statistics.speed == 1.0


def test_who_acknowledges_nothing_is_not_remembered() -> None:
    """Reports about shards that nobody holds, in whatever name, take no memory."""
    statistics = Statistics()
    for node in range(1_000):
        statistics.record_shards(f"worker-{node}", 0, 1_000.0)
    assert not statistics.shards
