"""Whole collective jobs in memory: who belongs to a world, what a loss, a join and a plan do to it."""

import re
from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.protocol.nodes import (
    CLUSTER_LOST_EXIT_CODE,
    CrashReport,
    ExitReport,
    NodeRef,
    ProcessReport,
    ProcessState,
    Registration,
)
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd, StepReport
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, model_messages, views
from edl_workflows.services.master.state.settings import Timeouts
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause, ClusterVersions
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.state.worlds import (
    carried_out,
    collective_job,
    message_of,
    plan_of,
    version_of,
    worker,
    world_of,
)


def test_the_first_world_waits_for_all_that_are_wanted() -> None:
    """The first group waits for all wanted workers. If none has joined for the waiting time, those that are
    present train."""
    job = collective_job(3, rounds=0)
    job.observe()
    job.commit()
    job.control()
    job.start_pods()
    job.kill(("worker", 1))
    for ref in (("worker", 2), ("worker", 0)):
        job.act(ref)
        job.now += 1.0
    assert job.state.versions == ClusterVersions(), "nobody is told of a world yet"
    job.now += 5.0
    job.settle()
    change = job.state.versions.change
    assert change is not None
    assert (change.cause, change.target) == (ChangeCause.INITIAL, (2, 0)), "by the time they joined"


def test_a_lost_member_and_the_way_back() -> None:
    """The survivors continue at once, with the oldest as rank 0. The replacement joins between two steps, and
    no step is lost."""
    job = collective_job(3)
    assert (world_of(job), version_of(job)) == ((0, 1, 2), 1)
    job.save_periodically()
    job.kill(("worker", 0))
    job.calm(20)
    assert job.versions_seen == {1: (0, 1, 2), 2: (1, 2), 3: (1, 2, 3)}
    assert job.state.chief == job.state.nodes.find("worker", 1)
    trained = job.steps[2]
    assert (world_of(job), version_of(job)) == ((1, 2, 3), 3)
    assert job.state.versions.settled
    assert job.models[3] == set(range(job.steps[3]))
    active = job.published.directive.active
    assert active is not None
    assert active.restore is not None
    assert active.restore.step == trained, "a switch checkpoint, nothing is trained again"


def test_processes_of_a_broken_world_are_told_so_and_may_wait() -> None:
    """The directive says that the group is lost. A process that fails because of that counts against no node
    and uses no restart."""
    job = collective_job(3)
    job.hangs = True
    job.kill(("worker", 2))
    job.observe()
    job.commit()
    assert job.published.directive.lost
    report = ExitReport(node=worker(0), incarnation="worker0", version=1, code=1)
    verdict = messages.decide_exit(job.state, report, job.now)
    assert verdict is not None
    assert verdict.wait
    job.calm(10)
    assert [node.relaunches for node in job.state.nodes.live("worker")] == [0, 0, 0]


def test_a_given_up_worker_is_done_without() -> None:
    """After a fatal error of one worker, a group that still has its minimum trains to the end without it."""
    job = collective_job(3, steps=40)
    job.kill(("worker", 0), code=1)
    job.calm(8)
    assert world_of(job) == (1, 2)
    job.calm(60)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded


@pytest.mark.parametrize(
    ("spec", "world"),
    [
        pytest.param(plan_of(3), (0, 1, 2), id="one more, behind the others"),
        pytest.param(plan_of(1), (0,), id="the newest goes"),
        pytest.param(
            plan_of(migrate=(0,)), (1, 2), id="who is migrated joins anew, the oldest left is rank 0"
        ),
        pytest.param(plan_of(3, migrate=(1,)), (0, 2, 3), id="both"),
        pytest.param(plan_of(2, checkpoint=True), (0, 1), id="nothing but a checkpoint"),
    ],
)
def test_plans_reach_what_they_ask_for(spec: ScalePlanSpec, world: tuple[int, ...]) -> None:
    """A plan succeeds when exactly the wanted workers train. Removed workers are gone, and no step is lost or
    made twice."""
    job = collective_job(2)
    assert carried_out(job, spec) is ScalePlanPhase.SUCCEEDED, message_of(job)
    assert world_of(job) == world
    assert {ref[1] for ref, pod in job.pods.items() if pod.runs} == set(world)
    assert job.models[version_of(job)] == set(range(job.steps[version_of(job)]))


def test_a_change_of_the_world_goes_through_all_steps() -> None:
    """As in a migration of parameter servers, the status lists each step and the duration of the stall, and a
    removed worker lives until the next group has made a step."""
    job = collective_job(3)
    seen: list[ScalePlanPhase] = []
    status: dict[str, Any] = {}
    job.submit("plan", plan_of(2))
    for _ in range(20):
        for _ in job.everything():
            run = job.state.plan
            if run is not None and (not seen or seen[-1] is not run.phase):
                seen.append(run.phase)
                status = views.plan_status(run)
            if run is None or run.phase is not ScalePlanPhase.SUCCEEDED:
                node = job.state.nodes.find("worker", 2)
                assert ScalePlanPhase.SUCCEEDED in seen or (node is not None and node.live)
    assert seen == [
        ScalePlanPhase.PENDING,
        ScalePlanPhase.CHECKPOINTING,
        ScalePlanPhase.CHECKPOINTED,
        ScalePlanPhase.MIGRATING,
        ScalePlanPhase.RESTARTING,
        ScalePlanPhase.VERIFYING,
        ScalePlanPhase.SUCCEEDED,
    ]
    assert status["stallSeconds"] >= 0
    assert status["resumedStep"] > status["checkpoint"]["step"]
    assert status["clusterVersion"] == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            plan_of(6),
            "the global batch has 4 mini-batches \\(spec.rendezvous.maxNodes\\)",
            id="more than the batch",
        ),
        pytest.param(
            plan_of(1), "at least 2 workers train together \\(spec.rendezvous.minNodes\\)", id="too few"
        ),
        pytest.param(plan_of(3), "3 is not a multiple of 2 \\(spec.rendezvous.nodeUnit\\)", id="no multiple"),
        pytest.param(plan_of(migrate=(7,)), "no running pod 'job-edljob-worker-7'", id="unknown pod"),
    ],
)
def test_plans_that_no_world_can_have_are_refused(spec: ScalePlanSpec, message: str) -> None:
    """The plan fails with a reason that names the field of the plan and that of the job, and training
    continues."""
    job = collective_job(2, min_nodes=2, node_unit=2)
    job.submit("plan", spec)
    said = set()
    for _ in range(4):
        for _ in job.everything():
            if job.state.plan is not None and job.state.plan.phase is ScalePlanPhase.FAILED:
                said.add((job.state.plan.reason, job.state.plan.message))
    ((reason, why),) = said
    assert reason == "InvalidPlan"
    assert re.search(message, why), why
    assert (world_of(job), version_of(job)) == ((0, 1), 1)


def test_a_world_that_does_not_train_is_rolled_back() -> None:
    """If the processes of a plan's group die before its first step, the previous members continue from the
    switch checkpoint."""
    job = collective_job(2)
    job.submit("plan", plan_of(3, step_timeout_seconds=30))
    for _ in range(30):
        if job.state.plan is not None and job.state.plan.phase is ScalePlanPhase.VERIFYING:
            break
        for _ in job.everything():
            if job.state.plan is not None and job.state.plan.phase is ScalePlanPhase.VERIFYING:
                break
    job.commit()
    report = ExitReport(
        node=worker(2), incarnation="worker2", version=2, code=1, last_lines="ValueError: shapes"
    )
    verdict = messages.decide_exit(job.state, report, job.now)
    assert verdict is not None
    assert verdict.wait
    job.settle()
    assert job.state.plan is not None
    assert (job.state.plan.reason, job.state.plan.phase) == ("SwitchFailed", ScalePlanPhase.FAILED)
    assert "ValueError: shapes" in job.state.plan.message
    job.calm(20)
    assert world_of(job) == (0, 1)
    assert job.state.counts == {"worker": 2}
    assert [node.id for node in job.state.nodes.live("worker")] == [0, 1]


def test_rank_0_saves_for_a_switch_when_it_has_stopped() -> None:
    """Even in a group of one, rank 0 saves for a switch only after it has stopped, and no step is made
    twice."""
    job = collective_job(1)
    job.submit("plan", plan_of(2))
    asked = False
    for _ in range(12):
        for _ in job.everything():
            run, change = job.state.plan, job.state.versions.change
            if run is None or change is None or run.phase is not ScalePlanPhase.RESTARTING:
                continue
            asked = asked or job.state.checkpoints.request == run.request
            assert not job.state.checkpoints.request or change.drained == ("worker-0",)
    assert asked
    assert world_of(job) == (0, 1)


def test_newcomers_that_are_lost_are_waited_for_no_longer() -> None:
    """If a new member dies while it joins, the others continue to train, and its replacement joins
    instead."""
    job = collective_job(2)
    job.kill(("worker", 1))
    for _ in range(12):
        job.calm(1)
        change = job.state.versions.change
        if change is not None and change.cause is ChangeCause.MEMBERSHIP:
            job.kill(("worker", change.target[-1]))
            break
    job.calm(20)
    assert world_of(job) == (0, 3)
    assert job.state.versions.settled


def test_newcomers_wait_when_the_checkpoint_fails() -> None:
    """If the checkpoint for a join fails, the members continue without the new one, and the join is tried
    again later."""
    job = collective_job(2)
    before = version_of(job)
    job._save = lambda pod, active, request="": _fail_to_save(job, pod.ref, active.version, request)  # type: ignore[method-assign]
    job.kill(("worker", 1))
    job.calm(20)
    assert world_of(job) == (0,)
    assert job.state.versions.settled
    assert job.state.volatile.newcomers_wait_until > job.now
    del job._save
    job.calm(80)
    assert world_of(job) == (0, 2)
    assert version_of(job) > before


def _fail_to_save(job: SimulatedCollectiveJob, node: NodeRef, version: int, request: str) -> None:
    ticket = model_messages.begin_checkpoint(
        job.state, CheckpointBegin(node=node, version=version, request=request), job.now
    )
    model_messages.end_checkpoint(job.state, ticket.id, CheckpointEnd(node=node, error="disk full"), job.now)


def test_newcomers_that_never_get_ready_are_replaced() -> None:
    """A new member that hangs while it prepares has failed after a time-out. The members continue to train in
    the meantime."""
    job = collective_job(2)
    timeouts = Timeouts(verdict=0.0, prepare=30.0)
    job.settings = job.state.settings = replace(job.settings, timeouts=timeouts)
    report = job._report
    deaf = ("worker", 2)
    job._report = (  # type: ignore[method-assign]
        lambda pod, version, what: None if (pod.type, pod.id) == deaf else report(pod, version, what)
    )
    job.kill(("worker", 1))
    job.calm(15)
    change = job.state.versions.change
    assert change is not None
    assert change.target == (0, 2)
    trained = job.steps[2]
    job.calm(20)
    assert job.steps[2] > trained
    job.calm(30)
    assert world_of(job) == (0, 3)


def test_a_member_that_cannot_prepare_a_second_process_trains_on() -> None:
    """If a node has no room for a second process, the new member is not admitted, and no member is ended for
    it."""
    job = collective_job(2)
    job.kill(("worker", 1))
    for _ in range(12):
        job.calm(1)
        change = job.state.versions.change
        if change is not None and change.cause is ChangeCause.MEMBERSHIP:
            crash = CrashReport(
                node=worker(0), incarnation="worker0", version=change.number, crashes=9, code=137
            )
            messages.record_crash_report(job.state, crash)
            break
    job.calm(20)
    assert world_of(job) == (0,)
    assert job.state.versions.settled
    assert {str(node) for node in job.state.nodes.live("worker")} == {"worker-0", "worker-2"}


def test_a_group_that_does_not_come_together_is_nobodys_fault() -> None:
    """Members wait for one that does not come, and their processes end again and again. None of them is
    removed for it, and the version is not activated without those processes."""
    job = collective_job(2)
    job.kill(("worker", 1))
    for _ in range(12):
        job.calm(1)
        change = job.state.versions.change
        if change is not None and change.cause is ChangeCause.MEMBERSHIP:
            break
    assert change is not None
    ready = ProcessReport(node=worker(0), version=change.number, state=ProcessState.READY)
    messages.record_process_report(job.state, ready)
    crash = CrashReport(
        node=worker(0),
        incarnation="worker0",
        version=change.number,
        crashes=9,
        code=CLUSTER_LOST_EXIT_CODE,
    )
    messages.record_crash_report(job.state, crash)
    change = job.state.versions.change
    assert change is not None
    assert "worker-0" not in change.ready
    job.calm(10)
    assert world_of(job) == (0, 2)


@pytest.mark.parametrize(
    ("say", "message"),
    [
        pytest.param(
            lambda state: messages.record_process_report(
                state, ProcessReport(node=worker(3), version=2, state=ProcessState.TRAINING)
            ),
            "worker-3 is not a member of version 2 .version 2: workers .0, 2..",
            id="a node that the version does not name",
        ),
        pytest.param(
            lambda state: messages.record_process_report(
                state, ProcessReport(node=worker(0), version=1, state=ProcessState.READY)
            ),
            "not a member of version 1",
            id="a version that is over",
        ),
        pytest.param(
            lambda state: messages.record_step_report(
                state, StepReport(node=worker(0), version=1, step=999, time=1.0, first_step_time=1.0)
            ),
            "not a member of version 1",
            id="a step of a version that is over",
        ),
        pytest.param(
            lambda state: model_messages.begin_checkpoint(
                state, CheckpointBegin(node=worker(2), version=2), 0.0
            ),
            "only rank 0 saves",
            id="a checkpoint of another than rank 0",
        ),
        pytest.param(
            lambda state: messages.register_node(
                state, Registration(node=worker(2), rank=0, incarnation="worker2"), 1.0
            ),
            "worker-2 has rank 2, but reports 0",
            id="a rank that is another's",
        ),
    ],
)
def test_who_is_no_member_is_refused(say: Any, message: str) -> None:
    """Reports from processes of an older group, or of none, are rejected with the reason and change
    nothing."""
    job = collective_job(3, node_unit=2)  # one of the three waits
    job.kill(("worker", 1))
    job.calm(10)
    assert (world_of(job), version_of(job)) == ((0, 2), 2)
    before = job.state.to_json()
    with pytest.raises(ConflictError, match=message):
        say(job.state)
    assert job.state.to_json() == before


def test_why_nobody_trains_is_told() -> None:
    """The status says what the next group waits for, and until when."""
    job = collective_job(2, min_nodes=2, join_timeout=500.0)
    assert (
        views.status_report(job.state, job.now)["rendezvous"]["why"]
        == "the present group already has the right members"
    )
    job.kill(("worker", 1))
    job.observe()
    job.now += 10.0
    (warning,) = views.job_status(job.state, job.now)["warnings"]
    assert warning.startswith(
        "no worker trains: 1 of at least 2 workers have joined; without more workers the"
    )
    assert views.status_report(job.state, job.now)["rendezvous"]["joined"] == [0]


def test_a_clock_that_is_set_does_not_lengthen_the_waiting() -> None:
    """If the clock is set, the times of joins are shifted with it, so that the waiting time after the last
    join stays the same."""
    job = collective_job(3, rounds=0)
    job.observe()
    job.commit()
    job.control()
    job.start_pods()
    job.kill(("worker", 2))
    job.act(("worker", 0))
    job.act(("worker", 1))
    job.now -= 900.0
    job.state.shift_times(-900.0)
    job.settle()
    assert job.state.versions == ClusterVersions()
    job.now += 6.0
    job.settle()
    change = job.state.versions.change
    assert change is not None
    assert change.target == (0, 1)


def test_an_evaluator_comes_and_goes_without_a_change_of_the_world() -> None:
    """An evaluator is not a member of the group: a plan that changes the evaluators leaves the group
    alone."""
    job = collective_job(roles=parse_nodes("worker=2,evaluator=1"))
    spec = ScalePlanSpec(replica_resource_specs={"evaluator": ReplicaResourceSpec(replicas=2)})
    assert carried_out(job, spec) is ScalePlanPhase.SUCCEEDED, message_of(job)
    assert (world_of(job), version_of(job)) == ((0, 1), 1)
    assert len(job.state.nodes.live("evaluator")) == 2
    job.delete_plan("plan")
    job.submit(
        "both",
        ScalePlanSpec(
            replica_resource_specs={
                "evaluator": ReplicaResourceSpec(replicas=1),
                "worker": ReplicaResourceSpec(replicas=3),
            }
        ),
    )
    job.calm(15)
    assert job.plans["both"].phase is ScalePlanPhase.SUCCEEDED
    assert world_of(job) == (0, 1, 2)
    assert len(job.state.nodes.live("evaluator")) == 1


def test_steps_of_an_evaluator_are_not_those_of_the_training() -> None:
    """An evaluator has a process of each version, too, but its step reports do not count. Otherwise a plan
    would succeed before the group has trained."""
    job = collective_job(roles=parse_nodes("worker=2,evaluator=1"))
    before = job.state.steps, job.state.versions.trained
    evaluator = NodeRef(type="evaluator", id=0)
    version = version_of(job)
    messages.record_step_report(
        job.state, StepReport(node=evaluator, version=version, step=10**9, time=9e9, first_step_time=1.0)
    )
    assert (job.state.steps, job.state.versions.trained) == before
    job.state.versions = replace(job.state.versions, trained=0)
    messages.record_process_report(
        job.state, ProcessReport(node=evaluator, version=version, state=ProcessState.TRAINING)
    )
    assert job.state.versions.trained == 0
