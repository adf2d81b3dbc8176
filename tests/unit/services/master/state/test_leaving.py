"""The last checkpoint before nodes end on purpose: who waits for it, and that it holds the last step."""

from dataclasses import replace

import pytest

from edl_workflows.core.jobs.grace import GRACE_SECONDS
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.core.protocol.nodes import (
    LeaveReport,
    LeaveVerdict,
    NodeRef,
    ProcessReport,
    ProcessState,
    Registration,
)
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd
from edl_workflows.pipelines.waiting.outputs import MAX_WARNING
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import checkpoints, messages, model_messages, views
from edl_workflows.services.master.state.job_result import TrainingResult
from edl_workflows.services.master.state.nodes import fault_steps, leaving_steps
from edl_workflows.services.master.state.nodes.leaving_steps import DRAIN_SECONDS, GATHER_SECONDS
from edl_workflows.services.master.state.nodes.registry import ExitReason, NodeStatus
from edl_workflows.services.master.state.settings import JobSettings
from tests.unit.services.master.simulated_job import SimulatedJob

CHIEF, WORKER, SERVER = ("worker", 0), ("worker", 1), ("ps", 0)


def training(nodes: str = "ps=1,worker=2", *, saves: bool = True, asks: bool = True) -> SimulatedJob:
    """A job that trains, and has not saved yet."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes(nodes)), shards=1000)
    job.asks_to_leave = asks
    job.calm(8)
    active = job.state.versions.active
    assert active is not None
    report = ProcessReport(
        node=NodeRef(type="worker", id=0), version=active.number, state=ProcessState.TRAINING, saves=saves
    )
    messages.record_process_report(job.state, report)
    return job


def leave(job: SimulatedJob, ref: tuple[str, int]) -> LeaveVerdict:
    """The agent of a pod that is told to end asks whether it may."""
    message = LeaveReport(node=NodeRef(type=ref[0], id=ref[1]), incarnation=f"{ref[0]}{ref[1]}")
    leaving_steps.record_leave(job.state, message, job.now)
    job.settle()
    return leaving_steps.leave_verdict(job.state, message, job.now)


def end(job: SimulatedJob, ref: tuple[str, int]) -> None:
    """The pod ends, as its agent was told."""
    job.kill(ref, 143)
    job.calm(1)


def made(job: SimulatedJob) -> int:
    """The last step of the active version."""
    assert job.state.versions.active is not None
    return job.steps[job.state.versions.active.number]


def test_evicted_server_waits_until_its_variables_are_stored() -> None:
    """All workers stop between two steps, the chief saves, then the server may go. The next version begins
    with the last step, and no record is trained twice."""
    job = training()
    assert not job.saved
    assert leave(job, SERVER).wait
    job.calm(3)
    last = made(job)
    job.calm(2)
    assert made(job) == last, "nobody trains beyond the checkpoint"
    newest = job.state.checkpoints.newest
    assert newest is not None
    assert newest.step == last > 0
    assert not leave(job, SERVER).wait

    end(job, SERVER)
    job.calm(10)
    active = job.state.versions.active
    assert active is not None
    assert active.number > 1
    assert active.restore == newest.ref
    assert made(job) > last
    assert len(job.models[active.number]) == made(job)


def test_nobody_trains_in_a_deleted_job_after_its_last_checkpoint() -> None:
    """All nodes of a deleted job wait for the checkpoint, workers included, and no node is replaced."""
    job = training()
    leaving_steps.record_deletion(job.state)
    assert all(leave(job, ref).wait for ref in (WORKER, SERVER, CHIEF))
    assert leaving_steps.somebody_leaves(job.state)
    job.calm(3)
    newest = job.state.checkpoints.newest
    assert newest is not None
    for ref in (CHIEF, WORKER, SERVER):
        assert not leave(job, ref).wait
        end(job, ref)
    assert newest.step == made(job)
    job.calm(3)
    assert not leaving_steps.somebody_leaves(job.state)
    assert len(job.created) == 3


@pytest.mark.parametrize("asks", [True, False], ids=["present agents", "agents of an earlier version"])
def test_whole_job_pauses_before_its_pods_are_told_if_the_chief_then_waits(asks: bool) -> None:
    """An agent of an earlier version passes SIGTERM on at once, and its program saves unless the job is
    paused: then only the chief itself can make the last checkpoint."""
    job = training(asks=asks)
    job.state.settings = replace(job.state.settings, suspend=True)
    job.calm(1)
    assert job.published.directive.drain is asks
    leave(job, SERVER)
    job.commit()
    assert job.published.directive.drain is asks, "a server's image may be newer than the chief's"
    leave(job, CHIEF)
    job.commit()
    assert job.published.directive.drain, "the chief has shown that it waits"


@pytest.mark.parametrize("chief_first", [True, False], ids=["the chief first", "the server first"])
def test_chief_of_an_earlier_version_ends_with_a_server(chief_first: bool) -> None:
    """A machine with both is drained, and the chief's agent passes SIGTERM on at once. The server waits for a
    chief that has ended no longer, and the job goes on from its newest checkpoint with each record once."""
    job = training(asks=False)
    job.calm(3)
    job.state.checkpoints = checkpoints.request_save(job.state.checkpoints, "by-hand")
    job.calm(3)
    newest = job.state.checkpoints.newest
    assert newest is not None
    job.calm(2)
    if chief_first:
        end(job, CHIEF)
    assert leave(job, SERVER).wait
    if not chief_first:
        end(job, CHIEF)
    rounds = 0
    while leave(job, SERVER).wait:
        job.now += GATHER_SECONDS
        job.calm(1)
        rounds += 1
        assert rounds < 60, "the server waits for a checkpoint that nobody makes"
    end(job, SERVER)
    job.calm(20)
    active = job.state.versions.active
    assert active is not None
    assert active.restore is not None
    assert made(job) > newest.step
    assert len(job.models[active.number]) == made(job)
    assert not leaving_steps.is_pausing(job.state)


def test_restarted_agent_is_not_told_to_end() -> None:
    """If a pod's container is restarted although it was told to end, the job trains on."""
    job = training()
    assert leave(job, CHIEF).wait
    job.calm(3)
    node = job.state.nodes.find(*CHIEF)
    assert node is not None
    messages.register_node(job.state, Registration(node=node.ref, rank=0, incarnation="again"), job.now)
    job.settle()
    assert not leaving_steps.somebody_leaves(job.state)
    assert not leaving_steps.is_pausing(job.state)


def test_pods_of_a_deleted_job_are_told_one_after_another() -> None:
    """A worker that is told first waits a moment, in which a server is told, too: it then stops with the
    others, before the checkpoint."""
    job = training()
    assert leave(job, WORKER).wait
    job.now += GATHER_SECONDS / 2
    assert leave(job, SERVER).wait
    job.now += GATHER_SECONDS
    assert leave(job, WORKER).wait, "until the checkpoint is stored"


def test_a_job_that_ends_with_its_last_node_waits_for_nobody() -> None:
    """The end of the only worker is the job's end; then no node is waited for, and the master may end."""
    job = training("worker=1")
    assert not leave(job, CHIEF).wait
    leaving_steps.record_deletion(job.state)
    assert leaving_steps.somebody_leaves(job.state)
    node = job.state.nodes.find("worker", 0)
    assert node is not None
    fault_steps.end_node(job.state, node, NodeStatus.FAILED, ExitReason.KILLED, 143)
    job.state.outcome = TrainingResult(succeeded=False, reason="WorkerFailed", message="")
    job.settle()

    assert not leaving_steps.somebody_leaves(job.state)


def test_evicted_worker_goes_and_the_others_train_on() -> None:
    """Nothing is lost with a worker that is not the chief."""
    job = training()
    before = made(job)
    assert leave(job, WORKER).wait
    job.now += GATHER_SECONDS
    assert not leave(job, WORKER).wait
    assert not job.published.directive.drain
    end(job, WORKER)
    job.calm(3)
    assert made(job) > before
    assert not job.saved


def test_evicted_chief_saves_and_the_others_go_on() -> None:
    """The workers stop only until the chief has ended."""
    job = training()
    assert leave(job, CHIEF).wait
    job.calm(3)
    assert job.state.checkpoints.newest is not None
    last = made(job)
    assert not leave(job, CHIEF).wait
    end(job, CHIEF)
    job.calm(6)
    assert made(job) > last


@pytest.mark.parametrize("nodes", ["ps=1,worker=2", "worker=2"])
def test_program_that_does_not_save_is_not_waited_for(nodes: str) -> None:
    """Nobody would answer the request. In a job without servers nobody waits: each process saves itself."""
    job = training(nodes, saves=False)
    leaving_steps.record_deletion(job.state)
    assert not leave(job, CHIEF).wait
    job.now += GATHER_SECONDS
    assert not leave(job, WORKER).wait
    assert not job.state.checkpoints.request


def test_worker_that_hangs_does_not_keep_the_chief_from_saving() -> None:
    """After a while the chief saves without it."""
    job = training()
    stuck = job.pods.pop(WORKER)  # it answers nothing
    leaving_steps.record_deletion(job.state)
    assert leave(job, SERVER).wait
    for _ in range(int(DRAIN_SECONDS) - 2):
        job.act(CHIEF)
        job.commit()
        job.now += 1.0
        assert leave(job, SERVER).wait
    assert not job.saved
    job.now += 3.0
    for _ in range(3):
        job.settle()
        job.commit()
        job.act(CHIEF)
    job.pods[WORKER] = stuck
    assert job.state.checkpoints.newest is not None
    assert not leave(job, SERVER).wait


def test_failed_or_endless_save_ends_the_wait() -> None:
    """A node is never kept longer than its pod would live."""
    job = training()
    leaving_steps.record_deletion(job.state)
    leave(job, SERVER)
    job.now += GRACE_SECONDS + 1
    assert not leave(job, SERVER).wait

    job = training()
    leave(job, SERVER)
    request = job.state.volatile.departure.request
    active = job.state.versions.active
    assert active is not None
    chief = NodeRef(type="worker", id=0)
    begin = CheckpointBegin(node=chief, version=active.number, request=request)
    ticket = model_messages.begin_checkpoint(job.state, begin, job.now)
    model_messages.end_checkpoint(job.state, ticket.id, CheckpointEnd(node=chief, error="full"), job.now)
    job.now += GATHER_SECONDS
    assert not leave(job, SERVER).wait


def test_plan_makes_its_own_checkpoints() -> None:
    """A server that is told to end while a plan changes the servers is not waited for: the plan holds the
    checkpoint."""
    job = training()
    job.submit(
        "more",
        ScalePlanSpec(owner_job="job", replica_resource_specs={"ps": ReplicaResourceSpec(replicas=2)}),
    )
    job.calm(2)
    assert job.state.plan is not None
    leave(job, SERVER)
    assert not job.state.volatile.departure.version


@pytest.mark.parametrize(("seconds", "warned"), [(10.0, False), (60.0, True)])
def test_grace_that_is_too_short_for_saves_is_warned_of_before_it_is_too_late(
    seconds: float, warned: bool
) -> None:
    """The status warns as soon as a save has taken so long that pods, which have 120 s, may not end in time
    when the job is deleted; and it shows the duration, which new pods follow."""
    job = training()
    active = job.state.versions.active
    assert active is not None
    chief = NodeRef(type="worker", id=0)
    begin = CheckpointBegin(node=chief, version=active.number)
    ticket = model_messages.begin_checkpoint(job.state, begin, job.now)
    job.now += seconds
    uri = CheckpointEnd(node=chief, uri="s3://a/1", step=1)
    model_messages.end_checkpoint(job.state, ticket.id, uri, job.now)
    status = views.job_status(job.state, job.now)
    assert status["checkpoint"]["saveSeconds"] == seconds
    warnings = [text for text in status["warnings"] if "terminationGracePeriodSeconds" in text]
    assert bool(warnings) is warned
    assert all(len(text) <= MAX_WARNING and "ps 120 s, worker 120 s" in text for text in warnings)
