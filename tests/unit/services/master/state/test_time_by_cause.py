"""Whole jobs in memory: each second of their lives has the cause that a person would name."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance, HangAction
from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import Directive, NodeRef, ProcessReport, ProcessState
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import goodput_steps, messages, views
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, Timeouts
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.simulated_job import SimulatedJob, SimulatedPod
from tests.unit.services.master.state.test_self_formed_worlds import job_of

SETTINGS = JobSettings(
    "job",
    "default",
    parse_nodes("ps=2,worker=2"),
    timeouts=Timeouts(verdict=0.0),
    fault_tolerance=FaultTolerance(hang_timeout_seconds=30, hang_action=HangAction.RESTART),
    created=900.0,
)
GROUP = replace(
    SETTINGS,
    roles=parse_nodes("worker=2"),
    collective=True,
    rendezvous=RendezvousLimits(max_nodes=2, waiting_timeout=5.0),
)


class SlowServers(SimulatedJob):
    """A job with parameter servers whose pods wait to be scheduled, and whose processes may hang."""

    schedules = False
    hangs_now = False

    def start_pods(self) -> None:
        if self.schedules:
            super().start_pods()

    def _train(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        if not self.hangs_now:
            super()._train(pod, active)


class SlowGroup(SimulatedCollectiveJob):
    """The same of a collective job."""

    schedules = False
    hangs_now = False

    def start_pods(self) -> None:
        if self.schedules:
            super().start_pods()

    def _between_steps(self, pod: SimulatedPod, active: TrainingCluster, directive: Directive) -> None:
        if not self.hangs_now:
            super()._between_steps(pod, active, directive)


def parts_of(job: SimulatedJob) -> dict[str, int]:
    """The parts in the job's status, which sum to the time since it was created."""
    spent: dict[str, int] = views.job_status(job.state, job.now)["goodput"]["seconds"]
    created = job.settings.created or 1000.0
    assert abs(sum(spent.values()) - (job.now - created)) <= 0.5
    return spent


def gained(job: SimulatedJob, before: dict[str, int]) -> dict[str, int]:
    """What was added to each part, without seconds that are due to rounding."""
    now = parts_of(job)
    return {cause: grown for cause in now if (grown := now[cause] - before.get(cause, 0)) > 1}


@pytest.mark.parametrize("collective", [False, True], ids=["servers", "collective"])
def test_the_life_of_a_job(collective: bool) -> None:
    """The job's time is divided into waiting for pods, training, the death of a master, a loss, a hang, and a
    suspension that outlives the master."""
    job: Any = SlowGroup(GROUP, steps=10_000) if collective else SlowServers(SETTINGS, shards=10_000)
    job.calm(20)
    assert parts_of(job) == {"queued": 120}

    job.schedules = True
    job.calm(30)
    spent = parts_of(job)
    assert spent["training"] >= 25
    assert spent["queued"] <= 122

    job.save_periodically()
    job.calm(3)
    before = parts_of(job)
    job.now += 20  # no master runs
    job.crash()
    job.calm(5)
    assert sum(gained(job, before).get(cause, 0) for cause in ("masterDown", "training")) >= 24

    before = parts_of(job)
    job.kill(("worker", 0) if collective else ("ps", 0))
    job.calm(10)
    assert gained(job, before)["redone"] >= 3
    assert job.state.versions.settled

    before, job.hangs_now = parts_of(job), True
    job.calm(38)
    assert gained(job, before)["hang"] >= 36
    job.hangs_now = False
    job.calm(15)
    assert job.state.versions.settled

    job.save_periodically()
    before = parts_of(job)
    job.settings = replace(job.settings, suspend=True)
    job.state.settings = job.settings
    job.settle()
    job.commit()
    job.pods.clear()
    job.now += 500
    job.settings = replace(job.settings, suspend=False)
    job.crash()
    job.calm(10)
    assert 499 <= gained(job, before)["suspended"] <= 501
    assert gained(job, before)["training"] >= 4


def test_a_stop_to_save_counts_unless_others_train() -> None:
    """While rank 0 of a group saves, all members stop, so the time counts as saving. While a chief saves, the
    other workers of its servers train, so it does not."""
    for job, saves in ((SlowGroup(GROUP, steps=10_000), True), (SlowServers(SETTINGS, shards=10_000), False)):
        job.schedules = True
        job.calm(40)
        active = job.state.versions.active
        assert active is not None
        report = ProcessReport(
            node=NodeRef(type="worker", id=0), version=active.number, state=ProcessState.TRAINING, saving=7.0
        )
        goodput_steps.count_save(job.state, report, job.now)
        late = report.model_copy(update={"version": active.number + 1})
        goodput_steps.count_save(job.state, late, job.now)
        assert parts_of(job).get("save", 0) == (7 if saves else 0)


def test_an_unmodified_program_trains_as_long_as_its_processes_run() -> None:
    """The program does not report steps. Only the time until its group has formed counts as lost."""
    job = job_of()
    before = parts_of(job)
    job.calm(100)
    assert gained(job, before) == {"training": 100}
    ratio = views.job_status(job.state, job.now)["goodput"]["ratio"]
    assert ratio == pytest.approx(
        job.state.goodput.parts(job.now)[TimeCause.TRAINING] / (job.now - 1000), abs=0.01
    )


@pytest.mark.parametrize("attempts", [1, 3], ids=["at once", "after replacements"])
def test_a_job_that_fails_without_a_sign_of_work_was_never_useful(attempts: int) -> None:
    """A program that ends with an error, before it reports anything, has only been starting: no time is
    useful, however often its node was replaced."""
    job = job_of(1)
    for attempt in range(attempts):
        job.calm(12)
        job.ends(attempt, code=1 if attempt == attempts - 1 else 137)
    assert job.state.outcome is not None
    assert not job.state.outcome.succeeded
    goodput = views.job_status(job.state, job.now)["goodput"]
    assert goodput["ratio"] == 0
    assert "training" not in goodput["seconds"]
    assert goodput["seconds"]["import"] >= 10 * attempts


def test_a_job_that_fails_after_a_member_has_trained_to_its_end_keeps_its_time() -> None:
    """The success of a process shows that the unmodified program has trained, although the job fails."""
    job = job_of()
    before = parts_of(job)
    job.calm(100)
    job.ends(1)
    job.ends(0, code=1)
    assert job.state.outcome is not None
    assert not job.state.outcome.succeeded
    assert gained(job, before) == {"training": 100}


def test_a_success_is_remembered_when_the_group_starts_again() -> None:
    """The success of a process still counts when all members were replaced, because another one was lost."""
    job = job_of()
    job.calm(100)
    job.ends(1)
    job.ends(0, code=137)
    job.calm(12)
    version, members = job.group()
    assert (version, len(members)) == (2, 2)
    for _report in range(2):  # the second one after the wait for another member's loss
        for member in members:
            job.ends(member, code=1)
        job.calm(12)
    assert job.state.outcome is not None
    assert not job.state.outcome.succeeded
    assert "training" in views.job_status(job.state, job.now)["goodput"]["seconds"]


def test_attempts_before_the_first_connect_were_starts() -> None:
    """A node dies before its program connects, and its replacement connects: neither trained until then."""
    job = job_of(1)
    job.calm(12)
    job.ends(0, code=137)
    job.calm(12)
    assert job.group() == (2, (1,))
    said = ProcessReport(node=NodeRef(type="worker", id=1), version=2, state=ProcessState.CONNECTED)
    messages.record_process_report(job.state, said)
    job.settle()
    assert "training" not in parts_of(job)
