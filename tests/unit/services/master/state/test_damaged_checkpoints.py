"""Checkpoints that can't be restored: an older one with its data position, or the job's end with what is
wrong.
"""

import pytest

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.jobs.scale_plan.model import (
    NodeResource,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import NodeRef, ProcessReport, ProcessState, Registration
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointDamage, CheckpointEnd
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, model_messages, views
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from edl_workflows.services.master.state.transitions import settle_job
from tests.unit.services.master.simulated_job import SimulatedJob

CHIEF = NodeRef(type="worker", id=0)


def job_with_checkpoints(nodes: str, count: int, shards: int = 300) -> tuple[SimulatedJob, list[str]]:
    """A job that trains and has saved so often; and where, oldest first."""
    settings = JobSettings("job", "default", parse_nodes(nodes), timeouts=Timeouts(verdict=0.0))
    job = SimulatedJob(settings, shards)
    job.calm(5)
    for _ in range(count):
        job.save_periodically()
        job.calm(2)
    uris = [saved.uri for saved in job.state.checkpoints.saved]
    assert len(uris) == count
    return job, uris


def lose_the_model(job: SimulatedJob) -> None:
    """The node that holds the model dies: the next version must restore it."""
    job.kill(("ps", 0) if ("ps", 0) in job.pods else ("worker", 0))


@pytest.mark.parametrize("nodes", ["ps=2,worker=2", "worker=1"])
def test_an_older_whole_checkpoint_is_taken_with_its_data_position(nodes: str) -> None:
    """If the two newest of three checkpoints are damaged, training continues from the third, no record is
    lost, and the status warns of both."""
    job, uris = job_with_checkpoints(nodes, 3)
    job.damaged = set(uris[1:])
    lose_the_model(job)
    job.calm(200)

    assert job.state.outcome is not None
    assert job.state.outcome.succeeded, job.state.outcome
    active = job.state.versions.active
    assert active is not None
    assert job.models[active.number] == set(range(300))
    warnings = views.job_status(job.state, job.now)["warnings"]
    assert [f"{uri}: torn" in warning for uri, warning in zip(reversed(uris[1:]), warnings, strict=True)] == [
        True,
        True,
    ]
    assert warnings[-1].endswith(f"{uris[0]} is taken instead")


@pytest.mark.parametrize("nodes", ["ps=2,worker=2", "worker=1"])
def test_without_a_whole_checkpoint_the_job_fails_with_what_is_wrong(nodes: str) -> None:
    """If all checkpoints are damaged, the job fails with one reason that lists the error of each file and
    what to do. No node is created for it."""
    job, uris = job_with_checkpoints(nodes, 2)
    job.damaged = set(uris)
    lose_the_model(job)
    job.calm(10)
    made = len(job.created)
    job.calm(20)

    failure = views.job_status(job.state, job.now)["failure"]
    assert failure["reason"] == "CorruptCheckpoint"
    for part in (*(f"{uri}: torn" for uri in uris), "submit the job again"):
        assert part in failure["message"]
    assert len(job.created) == made


def test_a_connected_process_has_not_trained_yet() -> None:
    """A process that has only connected to its master counts as not trained: if it then finds no intact
    checkpoint, the job fails at once."""
    state = JobState(JobSettings("job", "default", parse_nodes("worker=1")))
    settle_job(state, 1.0)
    messages.register_node(state, Registration(node=CHIEF, rank=0, incarnation="a"), 2.0)
    settle_job(state, 2.0)
    for said in (ProcessState.CONNECTED, ProcessState.READY, ProcessState.CONNECTED):
        messages.record_process_report(state, ProcessReport(node=CHIEF, version=1, state=said))
        settle_job(state, 3.0)
    damage = CheckpointDamage(node=CHIEF, version=1, uri="/checkpoints/7", error="/checkpoints/7: torn")
    model_messages.record_damaged_checkpoint(state, damage)
    settle_job(state, 4.0)

    assert state.versions.trained == 0
    assert state.outcome is not None
    assert state.outcome.reason == "CorruptCheckpoint"


def test_a_damaged_switch_checkpoint_rolls_the_migration_back() -> None:
    """If the switch checkpoint is damaged, the plan fails, and the old servers continue with the variables
    that they still hold: no step is lost, although the newest intact checkpoint is older."""
    job, _ = job_with_checkpoints("ps=2,worker=1", 1)
    servers = ScalePlanSpec(replica_resource_specs={"ps": ReplicaResourceSpec(replicas=3)})
    job.submit("plan", servers)
    for _ in range(20):
        for _ in job.everything():
            run = job.state.plan
            if run is not None and run.phase is ScalePlanPhase.VERIFYING and run.checkpoint is not None:
                job.damaged = {run.checkpoint.uri}
    job.calm(5)

    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    active = job.state.versions.active
    assert active is not None
    assert (active.members, active.processes, active.restore) == ((0, 1), (1, 1), None)
    assert job.state.versions.settled
    switched = job.state.left_at
    assert switched is not None
    assert switched.uri in job.damaged
    assert job.saved[switched.uri] < job.models[active.number]
    assert job.steps[active.number] > switched.step
    assert len(job.models[active.number]) == job.steps[active.number], "no record is trained twice"


@pytest.mark.parametrize("lost", ["pod", "process"])
def test_old_servers_that_were_lost_too_are_replaced(lost: str) -> None:
    """If one of the old servers is lost after the switch, or its container was restarted, its variables are
    gone: the job continues from the newest intact checkpoint, with the data position of that checkpoint."""
    job, _ = job_with_checkpoints("ps=2,worker=1", 1)
    job.submit("plan", ScalePlanSpec(migrate_ranks={0: NodeResource(), 1: NodeResource()}))
    for _ in range(30):
        for _ in job.everything():
            run = job.state.plan
            if run is not None and run.phase is ScalePlanPhase.VERIFYING and run.checkpoint is not None:
                if run.checkpoint.uri not in job.damaged:
                    lose_server(job, lost)
                job.damaged = {run.checkpoint.uri}
    job.calm(8)

    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    active = job.state.versions.active
    assert active is not None
    assert not any(active.processes)
    assert active.restore is not None
    assert active.restore.uri not in job.damaged
    assert job.state.versions.settled
    assert len(job.models[active.number]) == job.steps[active.number], "no record is trained twice"


def lose_server(job: SimulatedJob, lost: str) -> None:
    """An old server loses its variables: with its pod, or because its agent starts anew in it."""
    if lost == "pod":
        job.kill(("ps", 0))
    else:
        again = Registration(node=NodeRef(type="ps", id=0), rank=0, incarnation="again")
        messages.register_node(job.state, again, job.now)


def test_one_that_was_passed_over_at_the_start_only_warns() -> None:
    """If a process skips a damaged checkpoint and finds another one in the folder, it trains, and the status
    warns of the damaged one."""
    job, _ = job_with_checkpoints("worker=1", 0)
    taken = CheckpointRef(uri="/c/checkpoint-1", step=1)
    damage = CheckpointDamage(node=CHIEF, version=1, uri="/c/checkpoint-2", error="torn", instead=taken)
    for _ in range(2):  # repeatable
        model_messages.record_damaged_checkpoint(job.state, damage)
    job.settle()

    assert job.state.outcome is None
    assert job.state.versions.settled
    assert views.job_status(job.state, job.now)["warnings"] == [
        "a checkpoint could not be restored: torn; /c/checkpoint-1 is taken instead"
    ]


def test_a_checkpoint_that_is_saved_anew_under_its_name_is_whole() -> None:
    """Some programs save all checkpoints to one place. After a later save there, the checkpoint counts as
    intact."""
    job, _ = job_with_checkpoints("ps=1,worker=1", 0)
    other = CheckpointRef(uri="/other", step=0)
    damage = CheckpointDamage(node=CHIEF, version=1, uri="/latest", error="torn", instead=other)
    model_messages.record_damaged_checkpoint(job.state, damage)
    assert job.state.checkpoints.is_damaged(CheckpointRef(uri="/latest", step=7))

    ticket = model_messages.begin_checkpoint(job.state, CheckpointBegin(node=CHIEF, version=1), job.now)
    saved = CheckpointEnd(node=CHIEF, uri="/latest", step=7)
    model_messages.end_checkpoint(job.state, ticket.id, saved, job.now)

    assert not job.state.checkpoints.is_damaged(CheckpointRef(uri="/latest", step=7))
    assert views.job_status(job.state, job.now)["warnings"] == []


def test_a_late_word_of_a_version_that_was_left_changes_nothing() -> None:
    """A report of a damaged checkpoint for an earlier cluster version is rejected, and training continues."""
    job, (uri,) = job_with_checkpoints("ps=1,worker=1", 1)
    lose_the_model(job)
    job.calm(8)
    assert job.state.versions.settled
    with pytest.raises(ConflictError, match="version 1 is not the active one"):
        model_messages.record_damaged_checkpoint(
            job.state, CheckpointDamage(node=CHIEF, version=1, uri=uri, error="torn")
        )
    assert job.state.checkpoints.newest is not None
