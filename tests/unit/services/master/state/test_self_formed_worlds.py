"""Collective jobs in memory whose program does not use the library: it says nothing to the master, forms its
group from the environment, and exits.
"""

import pytest

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import (
    CLUSTER_LOST_EXIT_CODE,
    Directive,
    NodeRef,
    ProcessReport,
    ProcessState,
)
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, views
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, Timeouts
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.simulated_job import SimulatedPod
from tests.unit.services.master.state.worlds import worker


class SelfFormedJob(SimulatedCollectiveJob):
    """Its processes do what the test says, and nothing else."""

    def _processes(self, pod: SimulatedPod, directive: Directive) -> None:
        """They train, and tell nobody."""

    def ends(self, node_id: int, code: int = 0) -> None:
        """The process of a worker ends, in the newest version that it was started for."""
        change = self.state.versions.change
        assert change is not None
        self._exit(self.pods[names.WORKER_TYPE, node_id], change.number, code)
        self.settle()

    def node(self, node_id: int) -> JobNode:
        """A worker as the master knows it."""
        node = self.state.nodes.find(names.WORKER_TYPE, node_id)
        assert node is not None
        return node

    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state.outcome is not None

    def group(self) -> tuple[int, tuple[int, ...]]:
        """Version and members of the processes that run now."""
        change = self.state.versions.change
        assert change is not None
        return change.number, change.target


def job_of(workers: int = 2, **allowed: float) -> SelfFormedJob:
    """A job whose group has formed."""
    rendezvous = RendezvousLimits(max_nodes=4, **{"waiting_timeout": 5.0, **allowed})  # type: ignore[arg-type]
    settings = JobSettings(
        "job",
        "default",
        parse_nodes(f"worker={workers}"),
        timeouts=Timeouts(verdict=5.0, prepare=60.0),
        collective=True,
        rendezvous=rendezvous,
    )
    job = SelfFormedJob(settings)
    job.calm(6)
    assert job.group() == (1, tuple(range(workers)))
    return job


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rank 0 first", "rank 0 last"])
@pytest.mark.parametrize("minutes", [0, 30], ids=["together", "half an hour apart"])
def test_exit_0_means_done(order: tuple[int, int], minutes: int) -> None:
    """Members may end at different times, and train for longer than `Timeouts.prepare`. No member is replaced
    and no time-out applies; when all have ended, the job succeeds, also with a new master."""
    job = job_of(min_nodes=2, join_timeout=60.0)
    job.calm(100)
    first, last = order
    job.ends(first)
    job.crash()
    job.calm(minutes * 60)
    assert not job.over()
    assert job.group() == (1, (0, 1))
    job.ends(last)
    job.calm(1)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert [job.node(node_id).exit_reason for node_id in (0, 1)] == [ExitReason.SUCCEEDED] * 2
    assert len(job.created) == 2


@pytest.mark.parametrize("heard", ["before", "after"], ids=["loss heard first", "loss heard last"])
def test_a_lost_member_makes_all_begin_again(heard: str) -> None:
    """If a member is lost, the programs of the others fail, which does not count against them. They wait for
    the replacement, and all start again together."""
    job = job_of()
    if heard == "before":
        job.kill(("worker", 1))
        job.observe()
    job.ends(0, code=1)
    job.kill(("worker", 1))
    job.calm(8)
    assert job.group() == (2, (0, 2))
    assert job.node(0).relaunches == 0
    for node_id in (0, 2):
        job.ends(node_id)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded


@pytest.mark.parametrize(
    ("workers", "ended", "code", "at_once"),
    [
        (1, False, 1, True),
        (2, True, 1, True),
        (2, False, 1, False),
        (1, False, CLUSTER_LOST_EXIT_CODE, False),
    ],
    ids=["alone", "the other has ended", "with another", "it says that its group is lost"],
)
def test_a_failure_that_no_loss_can_explain_is_decided_at_once(
    workers: int, ended: bool, code: int, at_once: bool
) -> None:
    """The master waits before it blames a node only while another member may turn out to be lost, or if the
    program says so."""
    job = job_of(workers)
    if ended:
        job.ends(1)
    job.ends(0, code)
    assert job.node(0).live is not at_once


def test_fewer_go_on_where_the_replacement_does_not_come() -> None:
    """If no replacement comes within the waiting time, the survivors form a group by themselves, provided
    that `min_nodes` allows it."""
    job = job_of(3)
    job.kill(("worker", 2))
    job.observe()
    assert job.group()[0] == 0
    for _ in range(10):
        job.now += 1.0
        job.settle()
    assert job.group() == (2, (0, 1))


def test_who_has_ended_is_needed_again_after_a_loss() -> None:
    """If rank 0 is lost after another member has ended, that member is replaced as well: rank 0 can't form a
    group alone."""
    job = job_of()
    job.ends(1)
    job.kill(("worker", 0))
    job.calm(8)
    number, members = job.group()
    assert (number, len(members)) == (2, 2)
    assert set(members) == {2, 3}


def test_the_end_of_rank_0_is_enough_where_another_is_lost() -> None:
    """If rank 0 has ended with 0, the job succeeds even if another member was lost."""
    job = job_of()
    job.ends(0)
    job.kill(("worker", 1))
    job.calm(2)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded


def test_the_failure_of_rank_0_fails_the_job_although_others_ended_well() -> None:
    """If rank 0 fails, the job fails even if other members ended with success, since rank 0 writes the
    model."""
    job = job_of()
    job.ends(1)
    for _ in range(8):
        if job.node(0).live:
            job.ends(0, code=1)
        job.calm(1)
    outcome = job.state.outcome
    assert outcome is not None
    assert (outcome.succeeded, outcome.reason) == (False, "CriticalNodeFailed")
    assert "worker-0 ended with FatalError" in outcome.message


def test_a_late_worker_does_not_disturb_the_group() -> None:
    """Programs that don't use the agent library can't be asked to stop, so a late worker waits and ends with
    the job."""
    job = job_of(1)
    job.state.counts["worker"] = 2
    job.calm(20)
    assert job.node(1).registered
    assert job.group() == (1, (0,))
    job.ends(0)
    job.calm(1)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded


def test_a_program_that_connects_must_get_ready_in_time() -> None:
    """A process that connects through the library must report that it is ready within `Timeouts.prepare`;
    otherwise its node has failed."""
    job = job_of()
    said = ProcessReport(node=worker(0), version=1, state=ProcessState.CONNECTED)
    messages.record_process_report(job.state, said)
    job.calm(50)
    assert job.state.restarts.counts == {}
    job.calm(20)
    assert job.state.restarts.counts == {"PrepareTimeout": 2}


def test_progress_of_a_program_that_does_not_use_the_library() -> None:
    """A program that only reports its steps shows progress and metrics, and stays one that can't be asked
    to stop. Reports for another group are rejected."""
    job = job_of(2)
    version, _ = job.group()
    for step in (1, 2, 3):
        job.calm(1)
        report = StepReport(
            node=NodeRef(type="worker", id=0),
            version=version,
            step=step,
            time=job.now,
            first_step_time=job.now - step,
            loss=0.5,
            metrics={"accuracy": 0.9},
        )
        messages.record_step_report(job.state, report)
    progress = views.job_status(job.state, job.now)["progress"]
    assert (progress["step"], progress["metrics"]) == (3, {"accuracy": 0.9, "loss": 0.5})
    assert not job.state.connected
    assert job.state.self_formed is not None
    with pytest.raises(ConflictError):
        messages.record_step_report(job.state, report.model_copy(update={"version": version + 1}))
    job.ends(0)
    job.ends(1)
    assert job.over()
