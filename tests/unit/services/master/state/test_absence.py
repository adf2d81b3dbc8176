"""Members for whom the others wait: who is taken out, who is only reported, and why."""

from dataclasses import replace

import pytest

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance, HangAction
from edl_workflows.core.protocol.nodes import PresenceReport
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.nodes import standstill
from edl_workflows.services.master.state.nodes.absence import FRESH_SECONDS, MemberSign, find_absence
from edl_workflows.services.master.state.nodes.hang import DUMP_SECONDS
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode, NodeStatus
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, Timeouts
from edl_workflows.services.master.state.versions.cluster_versions import (
    ChangeCause,
    begin_change,
    begin_drain,
    report_drained,
)
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.state.in_place_jobs import processes
from tests.unit.services.master.state.worlds import version_of, worker, world_of

LIMIT = 10


class StandingJob:
    """A collective job of three workers in which nobody makes a step.

    Args:
        said: of its ``spec.faultTolerance``.
    """

    def __init__(self, **said: object) -> None:
        settings = JobSettings(
            "job",
            "default",
            parse_nodes("worker=3"),
            timeouts=Timeouts(verdict=0.0),
            collective=True,
            rendezvous=RendezvousLimits(1, 4, waiting_timeout=5.0),
            fault_tolerance=FaultTolerance.model_validate({"silent_member_seconds": LIMIT} | said),
        )
        self.job = SimulatedCollectiveJob(settings, 10_000, in_place=True)
        self.job.calm(10)
        self.state = self.job.state
        self.since = self.job.now

    def stand(self, seconds: int, *, waiting: tuple[int, ...] = (), busy: tuple[int, ...] = ()) -> None:
        """Time in which these members report that they wait, or that they live; the others are silent."""
        for _ in range(seconds):
            self.job.now += 1.0
            for node in (*waiting, *busy):
                self._report(node, self.job.now - self.since if node in waiting else 0.0)
            self.job.settle()
            self.job.commit()

    def node(self, number: int) -> JobNode:
        """A worker."""
        found = self.state.nodes.find("worker", number)
        assert found is not None
        return found

    def _report(self, node: int, waited: float) -> None:
        report = PresenceReport(node=worker(node), version=version_of(self.job), step=7, waiting=waited)
        standstill.note_sign(self.state, report, self.job.now)

    @property
    def warnings(self) -> str:
        """What the status warns of."""
        return "\n".join(views.job_status(self.state, self.job.now)["warnings"])


def test_a_silent_member_is_taken_out() -> None:
    """The member is taken out after the time-out, not before; the others keep their processes, a replacement
    is planned, and the list of restarts gives the reason."""
    standing = StandingJob()
    standing.stand(LIMIT - 1, waiting=(0, 1))
    assert world_of(standing.job) == (0, 1, 2)
    standing.stand(2, waiting=(0, 1))

    assert standing.node(2).status is NodeStatus.FAILED
    assert processes(standing.job) == {0: 1, 1: 1}
    assert standing.node(2).replaced_by == 3
    (restart,) = standing.state.restarts.recent
    assert (restart.subject, restart.cause) == ("worker-2", ExitReason.ABSENT)
    assert restart.message.startswith("silent for 10 s")
    assert restart.message.endswith("worker-0, worker-1 waited for it in step 8")


def test_a_member_that_lives_is_only_reported() -> None:
    """A late member that still reports is not removed: the status names it, in a text that does not change
    while the others wait."""
    standing = StandingJob()
    standing.stand(5, waiting=(0, 1), busy=(2,))
    assert standing.warnings == ""
    standing.stand(15, waiting=(0, 1), busy=(2,))
    told = standing.warnings
    standing.stand(60, waiting=(0, 1), busy=(2,))

    assert told.startswith("the other members have waited for worker-2 in step 8 since ")
    assert standing.warnings == told
    assert world_of(standing.job) == (0, 1, 2)


@pytest.mark.parametrize("said", [{"silent_member_seconds": 0}, {"silent_member_seconds": 600}])
def test_the_time_out_is_the_jobs(said: dict[str, object]) -> None:
    """The job sets how long a member may be silent; with 0 no member is taken out, and the status has a
    warning."""
    standing = StandingJob(**said)
    standing.stand(120, waiting=(0, 1))

    assert world_of(standing.job) == (0, 1, 2)
    assert "worker-2" in standing.warnings


def test_nobody_waits() -> None:
    """No member is removed or reported if all are silent (the master was cut off), if no member waits, or if
    all wait for each other."""
    for arguments in ({}, {"busy": (0, 1)}, {"waiting": (0, 1, 2)}):
        standing = StandingJob()
        standing.stand(60, **arguments)
        assert world_of(standing.job) == (0, 1, 2)
        assert standing.warnings == ""


def test_a_step_is_a_sign() -> None:
    """A member that reports a step is neither silent nor waiting any longer."""
    standing = StandingJob()
    standing.stand(LIMIT - 1, waiting=(0, 1))
    for node in range(3):
        report = StepReport(
            node=worker(node), version=1, step=8, time=standing.job.now, first_step_time=standing.job.now
        )
        standstill.note_sign(standing.state, report, standing.job.now)
    standing.since = standing.job.now
    standing.stand(LIMIT - 1, waiting=(0, 1))

    assert world_of(standing.job) == (0, 1, 2)


def test_a_new_master_listens_first() -> None:
    """A new master removes no silent member before it has listened for the whole time-out."""
    standing = StandingJob(silent_member_seconds=30)
    standing.stand(25, waiting=(0, 1), busy=(2,))
    standing.job.crash()
    standing.state = standing.job.state
    standing.stand(20, waiting=(0, 1))
    assert world_of(standing.job) == (0, 1, 2)
    standing.stand(20, waiting=(0, 1))
    assert standing.node(2).exit_reason is ExitReason.ABSENT


def test_a_member_that_does_not_drain() -> None:
    """The others have stopped between two steps for a new member and wait for the master. A member that does
    not stop is removed as in a step."""
    standing = StandingJob()
    state = standing.state
    state.versions = begin_change(state.versions, ChangeCause.MEMBERSHIP, (0, 1, 2), in_place=True)
    assert state.versions.change is not None
    state.versions = begin_drain(
        replace(state.versions, last_number=2, change=replace(state.versions.change, number=2))
    )
    for node in (0, 1):
        state.versions = report_drained(state.versions, f"worker-{node}", 1)
    standing.stand(LIMIT + 2, busy=(0, 1))

    assert standing.node(2).exit_reason is ExitReason.ABSENT
    assert 2 not in world_of(standing.job)


def test_a_late_member_is_taken_out_when_training_hangs() -> None:
    """With ``hangAction: restart``, only the late member is removed, once the stacks are collected. The
    others keep the model."""
    standing = StandingJob(hang_timeout_seconds=60, hang_action=HangAction.RESTART)
    standing.stand(60, waiting=(0, 1), busy=(2,))
    assert world_of(standing.job) == (0, 1, 2)
    assert standing.state.hangs.dump == "hang-1"
    standing.stand(int(DUMP_SECONDS) + 2, waiting=(0, 1), busy=(2,))

    assert standing.node(2).exit_reason is ExitReason.ABSENT
    assert "and training hangs" in standing.node(2).message
    assert processes(standing.job) == {0: 1, 1: 1}
    assert "Hang" not in standing.state.restarts.counts


def test_an_old_report_of_waiting_proves_nothing() -> None:
    """A report that is old, or of another version, takes no member out."""
    sign = MemberSign(at=100.0, version=3, step=4, waits_since=50.0)
    for version, now, found in ((3, 100.0 + FRESH_SECONDS, True), (3, 109.0, False), (4, 101.0, False)):
        absence = find_absence(["worker-0", "worker-1"], version, {"worker-0": sign}, 0.0, now)
        assert (absence is not None) == found
