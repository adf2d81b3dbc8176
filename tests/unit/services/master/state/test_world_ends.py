"""Whole collective jobs in memory: how they end, well and otherwise, and what is no end."""

from dataclasses import replace

import pytest

from edl_workflows.core.protocol.nodes import ExitReport, ProcessReport, ProcessState
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.nodes.registry import ExitReason
from edl_workflows.services.master.state.observations import PodPhase
from edl_workflows.services.master.state.settings import RoleSettings
from tests.unit.services.master.state.worlds import collective_job, version_of, worker, world_of


def test_fewer_than_the_fewest_wait_and_then_fail_the_job() -> None:
    """With fewer members than minNodes no member trains. After joinTimeout the job fails and says why."""
    job = collective_job(2, min_nodes=2, join_timeout=50.0)
    job.kill(("worker", 1))
    job.observe()
    job.commit()
    assert job.state.versions.change is not None
    assert job.state.versions.change.number == 0
    for _ in range(60):
        job.now += 1.0
        job.settle()
    assert job.state.outcome is not None
    assert (job.state.outcome.succeeded, job.state.outcome.reason) == (False, "JoinTimeout")
    assert "1 of at least 2 workers" in job.state.outcome.message


def test_too_few_workers_that_can_be_replaced_end_the_job_at_once() -> None:
    """If the remaining workers can't form a group and none can be replaced, the job ends at once."""
    job = collective_job(roles={"worker": RoleSettings(replicas=2, restart_count=0)}, min_nodes=2)
    job.kill(("worker", 1), code=3)
    job.calm(2)
    assert job.state.outcome is not None
    assert job.state.outcome.reason == "TooFewWorkers"
    assert "worker-1 ended with UnknownError" in job.state.outcome.message


def test_the_end_of_rank_0_is_the_end_of_the_job() -> None:
    """When rank 0 has trained to the end, the job succeeds, even if a worker still waits to be admitted."""
    job = collective_job(3, steps=30, node_unit=2)
    assert world_of(job) == (0, 1)
    job.calm(60)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[version_of(job)] == set(range(30))


def test_a_member_that_is_lost_after_its_chief_ended_is_not_missed() -> None:
    """Rank 0 has saved the final model. If another member dies while it exits, training does not start
    again."""
    job = collective_job(2, steps=30)
    while job.steps[1] < 30:
        job.calm(1)
    job.act(("worker", 0))
    job.kill(("worker", 1))
    job.calm(5)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert version_of(job) == 1


def test_a_suspended_job_begins_again_where_it_saved() -> None:
    """After a suspension, new workers form a group that starts from the newest checkpoint."""
    job = collective_job(2)
    job.save_periodically()
    saved = job.steps[1]
    settings = job.settings
    job.settings = job.state.settings = replace(settings, suspend=True)
    job.pods.clear()
    job.now += 60.0
    job.observe()
    job.settings = job.state.settings = settings
    job.calm(10)
    assert world_of(job) == (2, 3)
    active = job.published.directive.active
    assert active is not None
    assert active.restore is not None
    assert active.restore.step == saved
    assert job.state.restarts.counts == {"Resume": 1}


def test_a_program_that_ends_well_before_its_world_trains_has_failed() -> None:
    """A process that uses the library and exits with 0 before it has trained has failed, since the others
    would wait for it. Its node is replaced, and a group forms with the replacement."""
    job = collective_job(2, rounds=0)
    for _ in range(8):
        for _ in job.everything():
            change = job.state.versions.change
            if change is not None and change.number:
                break
    connected = ProcessReport(node=worker(1), version=1, state=ProcessState.CONNECTED)
    messages.record_process_report(job.state, connected)
    report = ExitReport(node=worker(1), incarnation="worker1", version=1, code=0)
    assert job.state.versions.active is None
    messages.decide_exit(job.state, report, job.now)
    job.settle()
    left = job.state.nodes.find("worker", 1)
    assert left is not None
    assert (left.exit_reason, left.replaced_by) == (ExitReason.UNKNOWN, 2)


def test_exit_reasons_of_members() -> None:
    """A member that is removed is replaced without using a restart, like any other node."""
    job = collective_job(2)
    job.kill(("worker", 1), code=143)
    job.observe()
    lost = job.state.nodes.find("worker", 1)
    assert lost is not None
    assert lost.exit_reason is ExitReason.KILLED
    assert job.state.nodes.live("worker")[-1].relaunches == 0


@pytest.mark.parametrize("late", [0, 1], ids=["rank 0", "another"])
def test_success_that_is_told_after_a_loss_does_not_hang_the_job(late: int) -> None:
    """A member dies, and another one reports success after the group was declared lost. If that is rank 0,
    the job succeeds; otherwise both are replaced and a new group forms."""
    job = collective_job(3, min_nodes=3)
    job.save_periodically()
    job.kill(("worker", 2))
    job.observe()
    job.commit()
    assert job.published.directive.lost
    report = ExitReport(node=worker(late), incarnation=f"worker{late}", version=1, code=0)
    verdict = messages.decide_exit(job.state, report, job.now)
    assert verdict is not None
    pod = job.pods["worker", late]
    pod.phase, pod.exit_code = PodPhase.SUCCEEDED, 0
    job.settle()
    if late == 0:
        assert job.state.outcome is not None, "the model is complete"
        assert job.state.outcome.succeeded
    else:
        job.calm(10)
        assert world_of(job) == (0, 3, 4)
        assert job.state.versions.settled
