"""Checkpoints that can't be saved while training goes on: who hears of it, and what follows."""

from dataclasses import replace

import pytest

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance
from edl_workflows.core.protocol.nodes import ExitReport, NodeRef
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, model_messages, views
from edl_workflows.services.master.state.settings import JobSettings
from tests.unit.services.master.simulated_job import SimulatedJob

FULL = "/ckpt: the checkpoint of step 7 can't be written: [Errno 28] No space left on device"
CHIEF = NodeRef(type="worker", id=0)


@pytest.fixture
def job() -> SimulatedJob:
    """A job that trains."""
    made = SimulatedJob(JobSettings("job", "default", parse_nodes("worker=1")), shards=1000)
    made.calm(8)
    return made


def save(job: SimulatedJob, error: str = "", times: int = 1, *, last: bool = False) -> None:
    """The chief saves, unasked; each message arrives twice."""
    active = job.state.versions.active
    assert active is not None
    for _ in range(times):
        begin = CheckpointBegin(node=CHIEF, version=active.number, last=last)
        ticket = model_messages.begin_checkpoint(job.state, begin, job.now)
        said = {"error": error} if error else {"uri": f"/ckpt/{ticket.id}", "step": 9}
        for _ in range(2):
            end = CheckpointEnd(node=CHIEF, **said)
            model_messages.end_checkpoint(job.state, ticket.id, end, job.now)
        job.settle()


def warnings(job: SimulatedJob) -> list[str]:
    """What the status warns of."""
    return list(views.job_status(job.state, job.now)["warnings"])


def test_a_failed_save_is_a_warning_at_once(job: SimulatedJob) -> None:
    """A failed save is reported as a warning at once, even a periodic save that nobody waits for. The warning
    stays, also with a new master, until a save succeeds."""
    assert warnings(job) == []
    save(job, FULL)
    said = warnings(job)
    assert said == [f"no checkpoint could be saved since 1970-01-01 00:16:48 UTC: {FULL}"]
    job.now += 600.0
    save(job, "/ckpt: another reason")
    job.commit()
    job.crash()
    assert warnings(job) == said
    assert job.state.checkpoints.failing.row == 2
    assert job.state.outcome is None
    save(job)
    assert warnings(job) == []
    assert (job.state.checkpoints.failing.row, job.state.checkpoints.failing.total) == (0, 2)


def test_so_many_failed_saves_fail_the_job(job: SimulatedJob) -> None:
    """If the job limits failed saves, that many in a row fail it; the message has the first cause. A saved
    checkpoint resets the count."""
    wanted = FaultTolerance(max_failed_saves=3)
    job.state.settings = replace(job.state.settings, fault_tolerance=wanted)
    save(job, FULL, times=2)
    save(job)
    save(job, FULL, times=2)
    assert views.job_status(job.state, job.now).get("failure") is None
    save(job, "/ckpt: another reason")
    outcome = job.state.outcome
    assert outcome is not None
    assert (outcome.succeeded, outcome.reason) == (False, "CheckpointFailed")
    assert "No space left on device" in outcome.message
    assert "maxFailedSaves" in outcome.message


@pytest.mark.parametrize("before", [0, 2], ids=["the first to fail", "after failures"])
def test_tries_of_the_last_checkpoint_do_not_fail_the_job(job: SimulatedJob, before: int) -> None:
    """Failed attempts at the last checkpoint are reported, but the chief decides how long it tries. Failures
    before the last checkpoint count towards ``maxFailedSaves`` as usual."""
    wanted = FaultTolerance(max_failed_saves=3)
    job.state.settings = replace(job.state.settings, fault_tolerance=wanted)
    save(job, FULL, times=before)
    save(job, FULL, times=5, last=True)
    early = job.state.outcome
    assert early is None
    assert FULL in warnings(job)[0]
    job.commit()
    job.crash()
    job.state.settings = replace(job.state.settings, fault_tolerance=wanted)
    save(job, FULL, times=3 - before)
    outcome = job.state.outcome
    assert outcome is not None
    assert outcome.message.startswith("3 checkpoints in a row")


def test_the_last_checkpoint_that_fails_is_named(job: SimulatedJob) -> None:
    """A chief whose last checkpoint can't be saved exits with a code of its own. When its restarts are used
    up, the job's message gives the cause."""
    said = f"step 1564\nthe last checkpoint could not be saved: {FULL}\n"
    for _ in range(10):
        chief = job.state.chief
        assert chief is not None
        active = job.state.versions.active
        number = active.number if active is not None else 0
        report = ExitReport(
            node=chief.ref, incarnation=chief.incarnation, version=number, code=74, last_lines=said
        )
        messages.decide_exit(job.state, report, job.now)
        job.pods.pop((chief.type, chief.id), None)
        job.calm(5)
        if job.state.outcome is not None:
            break
    assert job.state.outcome is not None
    assert job.state.outcome.reason == "CriticalNodeFailed"
    message = job.state.outcome.message
    assert "ended with CheckpointFailed (74): the last checkpoint could not be saved" in message
    assert "No space left on device" in message
