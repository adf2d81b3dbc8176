"""Histograms of how long training paused, and of how long faults went unnoticed."""

from dataclasses import replace

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.monitoring.durations import DurationCounts
from edl_workflows.core.protocol.nodes import NodeRef, ProcessReport, ProcessState
from edl_workflows.services.master.state import goodput_steps
from edl_workflows.services.master.state.goodput import Goodput
from edl_workflows.services.master.state.statistics import PauseCounts
from tests.unit.services.master.simulated_job import SimulatedJob
from tests.unit.services.master.state.test_absence import LIMIT, StandingJob
from tests.unit.services.master.state.test_faults import HANG_SECONDS, _job
from tests.unit.services.master.state.test_time_by_cause import GROUP, SlowGroup


def pauses_of(job: SimulatedJob) -> PauseCounts:
    """The pauses of a job."""
    return job.state.volatile.statistics.pauses


def test_durations_are_counted_in_buckets() -> None:
    """A bucket has all durations up to its limit; the last one has all."""
    counts = DurationCounts((1.0, 10.0))
    for seconds in (0.5, 1.0, 3.0, 60.0):
        counts.add(seconds)

    assert counts.cumulative() == [("1.0", 2.0), ("10.0", 3.0), ("+Inf", 4.0)]
    assert counts.total == 64.5


def test_a_loss_stalls_training() -> None:
    """The time from the last step before a loss to the first step of the survivors is a stall, and so is that
    until the first step with the replacement; the beginning of the job is none."""
    job = SlowGroup(GROUP, steps=10_000)
    job.schedules = True
    job.calm(20)
    assert sum(pauses_of(job).stalls.counts) == 0
    job.kill(("worker", 0))
    job.calm(20)

    assert sum(pauses_of(job).stalls.counts) == 2
    assert 2.0 <= pauses_of(job).stalls.total < 20.0


def test_stalls_and_restores_end_with_a_step() -> None:
    """What is between two groups is a stall, whatever it was spent on, and the part for which the model was
    restored is a restore. A clock that is set does not lengthen them."""
    trains = Goodput(began=1.0, version=1, step=5, at=100.0, since=100.0, cause=TimeCause.TRAINING)
    stopped = replace(trains, version=2, at=0.0, since=103.0, cause=TimeCause.RENDEZVOUS)
    restores = replace(stopped, since=110.0, cause=TimeCause.RESTORE)
    stepped = replace(restores, at=1030.0, since=1030.0, cause=TimeCause.TRAINING)
    pauses = PauseCounts()
    pauses.note_times(trains, stopped, 103.0)
    pauses.note_times(stopped, restores, 110.0)
    pauses.shift_times(900.0)
    pauses.note_times(restores, stepped, 1030.0)
    pauses.note_times(stepped, replace(stepped, step=6, at=1031.0), 1031.0)

    assert (sum(pauses.stalls.counts), pauses.stalls.total) == (1, 30.0)
    assert (sum(pauses.restores.counts), pauses.restores.total) == (1, 20.0)


def test_saves_that_stop_training_are_counted() -> None:
    """The time for which a save stops a collective job is counted; a report of another version is not."""
    job = SlowGroup(GROUP, steps=10_000)
    job.schedules = True
    job.calm(20)
    active = job.state.versions.active
    assert active is not None
    report = ProcessReport(
        node=NodeRef(type="worker", id=0), version=active.number, state=ProcessState.TRAINING, saving=0.25
    )
    goodput_steps.count_save(job.state, report, job.now)
    goodput_steps.count_save(job.state, report.model_copy(update={"version": 7}), job.now)

    assert (sum(pauses_of(job).blocking.counts), pauses_of(job).blocking.total) == (1, 0.25)


def test_a_hang_is_noticed_after_its_time_out() -> None:
    """The time since the last progress is counted once for each hang."""
    job = _job()
    job.hung = frozenset({1})
    job.calm(3 * HANG_SECONDS)

    assert sum(pauses_of(job).hangs.counts) == 1
    assert HANG_SECONDS <= pauses_of(job).hangs.total <= HANG_SECONDS + 3


def test_an_absent_member_is_noticed_after_its_time_out() -> None:
    """The time for which others have waited is counted when the member is taken out, and not before."""
    standing = StandingJob()
    standing.stand(LIMIT - 1, waiting=(0, 1))
    assert sum(pauses_of(standing.job).absences.counts) == 0
    standing.stand(2, waiting=(0, 1))

    assert sum(pauses_of(standing.job).absences.counts) == 1
    assert pauses_of(standing.job).absences.total >= LIMIT - 1
