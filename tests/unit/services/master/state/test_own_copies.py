"""The warning that each worker trains a copy of the model of its own: when it comes, and when it goes."""

import pytest

from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.core.protocol.nodes import ExitReport, Heartbeat, NodeRef, ProcessReport, ProcessState
from edl_workflows.pipelines.waiting.outputs import MAX_WARNING
from edl_workflows.services.master.shards.manager import ShardManager
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, views
from edl_workflows.services.master.state.settings import JobSettings
from tests.unit.services.master.simulated_job import SimulatedJob


def made(nodes: str = "worker=2") -> SimulatedJob:
    """A job that trains."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes(nodes)), shards=1000)
    job.calm(8)
    return job


def tell(job: SimulatedJob, *ids: int, own_copy: bool = True, role: str = "worker", times: int = 2) -> None:
    """The nodes make their first step; each message arrives so often."""
    active = job.state.versions.active
    assert active is not None
    for number in ids * times:
        report = ProcessReport(
            node=NodeRef(type=role, id=number),
            version=active.number,
            state=ProcessState.TRAINING,
            own_copy=own_copy,
        )
        messages.record_process_report(job.state, report)
    job.settle()


def scale(job: SimulatedJob, name: str, workers: int) -> None:
    """Somebody scales the job, and it is done."""
    wanted = {"worker": ReplicaResourceSpec(replicas=workers)}
    job.submit(name, ScalePlanSpec(owner_job="job", replica_resource_specs=wanted))
    job.calm(8)


def warnings(job: SimulatedJob) -> list[str]:
    """What the status warns of."""
    return list(views.job_status(job.state, job.now)["warnings"])


def test_two_workers_train_copies() -> None:
    """The warning is there once, when two workers have said so, and says what is wrong and what to do. Stages
    show all of it."""
    job = made()
    assert warnings(job) == []
    tell(job, 0)
    assert warnings(job) == []
    tell(job, 1)
    (said,) = warnings(job)
    assert said.startswith("each worker trains its own copy of the model, and only the chief's is saved")
    assert "one worker" in said
    assert "edl_workflows.training.frameworks" in said
    assert len(said) <= MAX_WARNING


def test_the_warning_survives_the_master() -> None:
    """The next master gives the same warning, before a worker has reported anything to it."""
    job = made()
    tell(job, 0, 1)
    said = warnings(job)
    job.commit()
    job.crash()
    assert warnings(job) == said != []


def test_the_warning_goes_with_the_second_worker() -> None:
    """A job that is scaled to one worker has no warning. It comes back, in the same words, with a second
    worker, and a third changes nothing."""
    job = made()
    tell(job, 0, 1)
    (said,) = warnings(job)
    scale(job, "down", 1)
    assert warnings(job) == []
    scale(job, "up", 3)
    tell(job, *(node.id for node in job.state.nodes.live("worker")))
    assert warnings(job) == [said]


def test_a_lost_worker_does_not_change_the_warning() -> None:
    """The warning stays while a lost worker is replaced: whoever follows the job logs it once."""
    job = made()
    tell(job, 0, 1)
    (said,) = warnings(job)
    job.kill(("worker", 1))
    for _ in range(8):
        job.calm(1)
        assert warnings(job) == [said]
    tell(job, *(node.id for node in job.state.nodes.live("worker")))
    assert warnings(job) == [said]


def test_a_program_that_trains_one_model_after_all() -> None:
    """A worker's newest process counts: the program may have been changed while the job was suspended."""
    job = made()
    tell(job, 0, 1)
    assert warnings(job)
    tell(job, 1, own_copy=False)
    assert warnings(job) == []


@pytest.mark.parametrize(
    ("nodes", "role"), [("ps=1,worker=2", "worker"), ("worker=1,evaluator=2", "evaluator")]
)
def test_jobs_that_have_no_copies(nodes: str, role: str) -> None:
    """Parameter servers hold one model for all workers, and evaluators train none, whatever they say."""
    job = made(nodes)
    tell(job, 0, 1, role=role)
    assert warnings(job) == []


def test_a_chief_counts_as_a_worker() -> None:
    """A chief of its own role and one worker train two copies."""
    job = made("chief=1,worker=1")
    tell(job, 0, role="chief")
    assert warnings(job) == []
    tell(job, 0)
    assert len(warnings(job)) == 1


def test_an_old_agent_says_nothing() -> None:
    """A report of an agent that does not know the field means: no copy."""
    report = ProcessReport.model_validate(
        {"node": {"type": "worker", "id": 0}, "version": 1, "state": "training"}
    )
    assert report.own_copy is False


@pytest.mark.parametrize("connected", [False, True])
def test_what_agents_see_of_programs_without_the_library(connected: bool) -> None:
    """An agent's observation counts, in a heartbeat and at the end of a process, until it sees the opposite.
    A program that uses the library speaks for itself."""
    job = made()
    job.state.connected = connected

    def beat(number: int, own_copy: bool | None) -> None:
        node = job.state.nodes.find("worker", number)
        assert node is not None
        beat = Heartbeat(
            node=NodeRef(type="worker", id=number), incarnation=node.incarnation, own_copy=own_copy
        )
        messages.record_heartbeat(job.state, beat, job.now)

    beat(0, own_copy=True)
    beat(1, own_copy=None)
    assert warnings(job) == []
    beat(1, own_copy=True)
    beat(1, own_copy=None)
    assert warnings(job) == ([] if connected else [NO_GROUP])
    beat(1, own_copy=False)
    assert warnings(job) == []
    node = job.state.nodes.find("worker", 1)
    assert node is not None
    report = ExitReport(
        node=NodeRef(type="worker", id=1), incarnation=node.incarnation, version=1, code=0, own_copy=True
    )
    messages.decide_exit(job.state, report, job.now)
    assert warnings(job) == ([] if connected else [NO_GROUP])


def test_what_only_the_ends_show_is_in_the_result() -> None:
    """Processes may be so short that their agents report it only with their ends: the job that has succeeded
    has the warning."""
    job = made()
    job.state.shards, job.state.connected = ShardManager(), False  # the program does not use the library
    for number in (0, 1):
        node = job.state.nodes.find("worker", number)
        assert node is not None
        ref = NodeRef(type="worker", id=number)
        end = ExitReport(node=ref, incarnation=node.incarnation, version=1, code=0, own_copy=True)
        messages.decide_exit(job.state, end, job.now)
    job.settle()
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert warnings(job) == [NO_GROUP]


def test_scripts_that_another_process_starts() -> None:
    """A process that starts scripts (``--nproc-per-node``) reports for them: they take no data from the job,
    and are not told that they do."""
    job = made()
    job.state.shards = ShardManager()
    job.state.connected = True
    tell(job, 0, 1)
    assert warnings(job) == [NO_GROUP]
