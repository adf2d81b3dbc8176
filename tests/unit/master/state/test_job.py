"""Whole jobs in memory: what happens to nodes, versions, data and plans in named situations."""

from collections.abc import Iterable
from typing import Any

import pytest

from edl_workflows.jobs import names
from edl_workflows.jobs.scale_plan.model import (
    NodeResource,
    PodMeta,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.master.standalone import parse_nodes
from edl_workflows.master.state import views
from edl_workflows.master.state.nodes.registry import ExitReason
from edl_workflows.master.state.observations import PodPhase
from edl_workflows.master.state.settings import JobSettings, RoleSettings, Timeouts
from edl_workflows.master.state.stored_state import StoredState
from edl_workflows.protocol.cluster import TrainingCluster
from edl_workflows.protocol.datasets import AckRequest, LeaseRequest
from tests.unit.master.simulated_job import DATA, SimulatedJob, SimulatedPod


def _job(nodes: str = "ps=2,worker=2", shards: int = 10_000, **timeouts: float) -> SimulatedJob:
    settings = JobSettings(
        "job", "default", parse_nodes(nodes), limits={"cpu": 40.0}, timeouts=Timeouts(verdict=0.0, **timeouts)
    )
    job = SimulatedJob(settings, shards)
    job.calm(5)
    assert job.state.versions.settled
    return job


def _spec(
    ps: int | None = None, worker: int | None = None, migrate: tuple[int, ...] = (), **more: Any
) -> ScalePlanSpec:
    counts: dict[Any, ReplicaResourceSpec] = {
        role: ReplicaResourceSpec(replicas=count)
        for role, count in (("ps", ps), ("worker", worker))
        if count is not None
    }
    pods = [PodMeta(name=f"job-edljob-ps-{server}", resource=NodeResource(cpu="2")) for server in migrate]
    return ScalePlanSpec(replica_resource_specs=counts, migrate_pods=pods, **more)


def _run(job: SimulatedJob, spec: ScalePlanSpec, rounds: int = 15) -> ScalePlanPhase | None:
    job.submit("plan", spec)
    job.calm(rounds)
    return job.plans["plan"].phase


def _servers(job: SimulatedJob) -> tuple[int, ...]:
    assert job.state.versions.active is not None
    return job.state.versions.active.members


def _until(job: SimulatedJob, phase: ScalePlanPhase) -> None:
    for _ in range(20):
        if job.state.plan is not None and job.state.plan.phase is phase:
            return
        for _ in job.everything():
            if job.state.plan is not None and job.state.plan.phase is phase:
                break
    raise AssertionError(f"the plan never came to {phase}")


@pytest.mark.parametrize(
    ("spec", "servers", "workers"),
    [
        pytest.param(_spec(ps=3), (0, 1, 2), 2, id="one more server"),
        pytest.param(_spec(ps=1), (0,), 2, id="one server less, the highest rank"),
        pytest.param(_spec(migrate=(0,)), (2, 1), 2, id="a migrated server keeps its rank"),
        pytest.param(_spec(ps=3, migrate=(1,)), (0, 2, 3), 2, id="both"),
        pytest.param(_spec(worker=4), (0, 1), 4, id="more workers, same version"),
        pytest.param(_spec(worker=1), (0, 1), 1, id="fewer workers, the chief stays"),
        pytest.param(_spec(ps=1, worker=3), (0,), 3, id="servers and workers"),
    ],
)
def test_plans_reach_what_they_ask_for(spec: ScalePlanSpec, servers: tuple[int, ...], workers: int) -> None:
    """A plan succeeds when exactly the wanted nodes train; servers that are not needed are gone."""
    job = _job()
    assert _run(job, spec) is ScalePlanPhase.SUCCEEDED
    assert _servers(job) == servers
    assert {ref[1] for ref in job.pods if ref[0] == "ps"} == set(servers)
    assert len(job.state.nodes.live("worker")) == workers
    chief = job.state.chief
    assert chief is not None
    assert chief.rank == 0


class SilentJob(SimulatedJob):
    """A job of which some pods run programs that know nothing of a master, and some that never train."""

    silent: frozenset[tuple[str, int]] = frozenset()
    idle = False

    def act(self, ref: tuple[str, int]) -> None:
        """Nothing of a silent pod is heard."""
        if ref not in self.silent:
            super().act(ref)

    def _train(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        if not self.idle:
            super()._train(pod, active)


@pytest.mark.parametrize(
    ("silent", "idle", "says"),
    [
        ({("ps", 0), ("worker", 1)}, False, "ps-0, worker-1 did not register"),
        ((), True, "no step of cluster version 1 was reported"),
    ],
    ids=["programs without an agent", "programs that never train"],
)
def test_a_plan_that_can_not_begin_says_what_it_waits_for(
    silent: Iterable[tuple[str, int]], idle: bool, says: str
) -> None:
    """Its status has a reason and a message while it waits, written once; it begins when that has come, and
    then says so no more.
    """
    settings = JobSettings("job", "default", parse_nodes("ps=2,worker=2"), timeouts=Timeouts(verdict=0.0))
    job = SilentJob(settings, 10_000)
    job.silent, job.idle = frozenset(silent), idle
    job.submit("plan", _spec(worker=3))
    job.calm(10)
    assert job.state.plan is not None
    status, serial = views.plan_status(job.state.plan), job.state.plan.serial
    assert status["phase"] == "Pending"
    assert status["reason"] == "Waiting"
    assert says in status["message"]
    job.calm(10)
    assert job.state.plan.serial == serial
    job.silent, job.idle = frozenset(), False
    _until(job, ScalePlanPhase.SCALING)
    assert job.state.plan is not None
    assert views.plan_status(job.state.plan)["message"] == ""
    job.calm(15)
    assert job.plans["plan"].phase is ScalePlanPhase.SUCCEEDED


def test_a_plan_during_a_recovery_says_so() -> None:
    """Who is being waited for is named."""
    job = SilentJob(
        JobSettings("job", "default", parse_nodes("ps=2,worker=2"), timeouts=Timeouts(verdict=0.0))
    )
    job.calm(5)
    job.silent = frozenset({("ps", 2)})
    job.kill(("ps", 0))
    job.calm(3)
    job.submit("plan", _spec(worker=3))
    job.calm(5)
    assert job.state.plan is not None
    assert job.state.plan.message.startswith("a lost node is being replaced: ps-2 did not register")


def _both() -> ScalePlanSpec:
    """A plan that makes server 0 and worker 1 anew, each of another size."""
    pods = [
        PodMeta(name=f"job-edljob-{node}", resource=NodeResource.model_validate(size))
        for node, size in (("ps-0", {"cpu": "2"}), ("worker-1", {"memory": "4Gi", "nvidia.com/gpu": 1}))
    ]
    return ScalePlanSpec(migrate_pods=pods)


def test_servers_and_workers_are_migrated_together() -> None:
    """One plan does what two would: each node keeps its rank and gets its size; the old ones are gone, and
    all data is trained.
    """
    job = _job(shards=60)
    job.submit("plan", _both())
    job.calm(60)
    assert job.plans["plan"].phase is ScalePlanPhase.SUCCEEDED
    assert job.versions_seen[2] == (2, 1)
    assert {("ps", 0), ("worker", 1)} <= set(job.removed)
    assert ("worker", 2) in job.created
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[2] == set(range(60))


def test_a_failed_plan_takes_migrated_workers_back() -> None:
    """Where the new worker finds no place, servers and workers are in the end as they were before the
    plan.
    """
    job = _job()
    job.submit("plan", _both().model_copy(update={"step_timeout_seconds": 20}))
    for _ in range(60):
        for _ in job.everything():
            if ("worker", 2) in job.pods:
                job.pods["worker", 2].phase = PodPhase.PENDING
    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    assert _servers(job) == (0, 1)
    (worker,) = [node for node in job.state.nodes.live("worker") if node.rank == 1]
    assert worker.registered
    assert worker.resource == NodeResource()


def test_a_chief_that_has_ended_saves_nothing() -> None:
    """The chief found all data consumed just before it was asked to save. The plan ends at once, not after
    its step's time, and the worker that has stopped for the switch is let go: the job ends.
    """
    job = _job()
    job.submit("plan", _spec(ps=3))
    _until_somebody_drained(job)
    active, chief = job.state.versions.active, job.state.chief
    assert active is not None
    assert chief is not None
    rest = LeaseRequest(node=chief.ref, version=active.number, max_shards=10_000, holding=[])
    done = job.state.shards.lease(DATA, rest, job.now).shards
    job.state.shards.acknowledge(DATA, AckRequest(node=chief.ref, done=done), job.now)
    job.pods["worker", chief.id].phase = PodPhase.SUCCEEDED
    job.calm(10)

    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded


def _until_somebody_drained(job: SimulatedJob) -> None:
    for _ in range(20):
        for _ in job.everything():
            change = job.state.versions.change
            if change is not None and change.drained:
                return
    raise AssertionError("nobody was drained")


def test_a_migration_goes_through_all_steps_in_order() -> None:
    """Each step stands in the status with its times, and the result says where training resumed."""
    job = _job()
    seen: list[ScalePlanPhase] = []
    job.submit("plan", _spec(ps=3))
    for _ in range(20):
        for _ in job.everything():
            run = job.state.plan
            if run is not None and (not seen or seen[-1] is not run.phase):
                seen.append(run.phase)
                status = views.plan_status(run)
    assert seen == [
        ScalePlanPhase.PENDING,
        ScalePlanPhase.CHECKPOINTING,
        ScalePlanPhase.CHECKPOINTED,
        ScalePlanPhase.MIGRATING,
        ScalePlanPhase.RESTARTING,
        ScalePlanPhase.VERIFYING,
        ScalePlanPhase.SUCCEEDED,
    ]
    assert [step["phase"] for step in status["steps"]] == seen[:-1]
    assert status["observedGeneration"] == 1
    assert all(step["finishTime"] >= step["startTime"] for step in status["steps"])
    assert status["resumedStep"] > status["checkpoint"]["step"]
    assert status["stallSeconds"] >= 0
    assert status["clusterVersion"] == 2


@pytest.mark.parametrize(
    ("spec", "phases"),
    [
        (_spec(checkpoint=True), ["Pending", "Checkpointing", "Checkpointed"]),
        (_spec(worker=3), ["Pending", "Scaling"]),
        (_spec(worker=3, checkpoint=True), ["Pending", "Checkpointing", "Checkpointed", "Scaling"]),
    ],
)
def test_plans_that_change_no_server_are_short(spec: ScalePlanSpec, phases: list[str]) -> None:
    """A request for a checkpoint ends with it; workers come and go without one."""
    job = _job()
    statuses: list[dict[str, Any]] = []
    job.submit("plan", spec)
    for _ in range(12):
        job.calm(1)
        if job.state.plan is not None:
            statuses.append(views.plan_status(job.state.plan))
    assert job.plans["plan"].phase is ScalePlanPhase.SUCCEEDED
    assert [step["phase"] for step in statuses[-1]["steps"]] == phases[: len(statuses[-1]["steps"])]
    assert job.state.versions.last_number == 1


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (_spec(ps=0), "spec.replicaResourceSpecs.ps.replicas"),
        (_spec(worker=0), "spec.replicaResourceSpecs.worker.replicas"),
        (_spec(migrate=(9,)), "spec.migratePods.0.name"),
        (ScalePlanSpec(migrate_ranks={9: NodeResource(cpu="2")}), "spec.migrateRanks.9"),
        (ScalePlanSpec(create_pods=[PodMeta(name="x")]), "spec.createPods"),
        (
            ScalePlanSpec(replica_resource_specs={"chief": ReplicaResourceSpec(replicas=1)}),
            "spec.replicaResourceSpecs.chief",
        ),
        (
            ScalePlanSpec(
                replica_resource_specs={
                    "ps": ReplicaResourceSpec(replicas=4, resource=NodeResource(cpu="30"))
                }
            ),
            "spec.replicaResourceSpecs.ps.resource.cpu",
        ),
    ],
)
def test_a_plan_that_does_not_fit_fails_with_the_field(spec: ScalePlanSpec, says: str) -> None:
    """Nothing is begun, and the message names the field."""
    job = _job()
    messages: list[str] = []
    job.submit("plan", spec)
    for _ in range(6):
        messages += [job.state.plan.message for _ in job.everything() if job.state.plan is not None]
    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    assert any(says in message for message in messages)
    assert job.state.versions.last_number == 1


def test_a_rank_means_the_server_that_holds_it_now() -> None:
    """A plan names ranks; servers that took a rank over in an earlier plan are found by it."""
    job = _job()
    for plan in ("first", "second"):
        job.submit(plan, ScalePlanSpec(migrate_ranks={0: NodeResource(cpu="2")}))
        job.calm(15)
        assert job.plans[plan].phase is ScalePlanPhase.SUCCEEDED

    assert _servers(job) == (3, 1)


@pytest.mark.parametrize(
    "phase", [ScalePlanPhase.MIGRATING, ScalePlanPhase.RESTARTING, ScalePlanPhase.VERIFYING]
)
def test_a_new_server_that_dies_takes_the_plan_back(phase: ScalePlanPhase) -> None:
    """Whenever the new server dies before training resumed, the job ends with the old servers and goes on."""
    job = _job()
    job.submit("plan", _spec(ps=3))
    _until(job, phase)
    job.calm(0 if phase is ScalePlanPhase.VERIFYING else 1)
    for _ in range(5):  # the pod may have to be made first
        if ("ps", 2) in job.pods:
            break
        job.calm(1)
    if job.state.versions.trained < 2:
        job.kill(("ps", 2))
    job.observe()
    job.calm(20)
    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    assert len(_servers(job)) == 2
    assert {ref[1] for ref, pod in job.pods.items() if ref[0] == "ps" and pod.runs} == set(_servers(job))
    assert job.state.versions.settled


def test_a_switch_that_does_not_train_is_rolled_back() -> None:
    """No step within the limit: a further version of the old servers starts from the switch checkpoint."""
    job = _job()
    job.submit("plan", _spec(ps=3, step_timeout_seconds=50))
    _until(job, ScalePlanPhase.VERIFYING)
    switch = job.state.versions.active
    assert switch is not None
    job.now += 60
    job.settle()
    assert job.state.plan is not None
    assert job.state.plan.reason == "StepTimeout"
    job.calm(20)
    active = job.state.versions.active
    assert active is not None
    assert (active.members, active.restore) == ((0, 1), switch.restore)
    assert active.number > switch.number
    assert job.plans["plan"].phase is ScalePlanPhase.FAILED


def test_a_deleted_plan_is_taken_back() -> None:
    """Before the switch, deleting a plan leaves the old cluster and no pod of the new one."""
    job = _job()
    job.submit("plan", _spec(ps=3, worker=4))
    _until(job, ScalePlanPhase.MIGRATING)
    job.calm(1)
    job.delete_plan("plan")
    job.calm(15)
    assert _servers(job) == (0, 1)
    assert sorted(ref for ref, pod in job.pods.items() if pod.runs) == [
        ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1),
    ]  # fmt: skip


def test_plans_run_one_after_another_in_order() -> None:
    """The second plan waits for the first, and both are carried out."""
    job = _job()
    job.submit("a", _spec(ps=3))
    job.submit("b", _spec(ps=1))
    phases = []
    for _ in range(30):
        job.calm(1)
        phases.append((job.plans["a"].phase, job.plans["b"].phase))
    assert phases[-1] == (ScalePlanPhase.SUCCEEDED, ScalePlanPhase.SUCCEEDED)
    assert all(second is None for first, second in phases if first is not ScalePlanPhase.SUCCEEDED)
    assert len(_servers(job)) == 1


def test_a_lost_server_means_a_version_from_the_newest_checkpoint() -> None:
    """The replacement keeps the rank; model and data go back together."""
    job = _job()
    job.save_periodically()
    saved = job.state.checkpoints.newest
    assert saved is not None
    job.calm(3)
    before = views.records_done(job.state)
    job.kill(("ps", 0))
    job.observe()
    assert views.next_announcement(job.state).directive.lost
    job.calm(1)
    job.calm(6)
    active = job.state.versions.active
    assert active is not None
    assert active.members == (2, 1)
    assert active.restore == saved.ref
    assert not views.next_announcement(job.state).directive.lost
    assert job.state.versions.settled
    job.calm(3)
    assert views.records_done(job.state) < before + 60
    assert not any(node.waiting for node in job.state.nodes)


def test_a_lost_worker_gives_its_shards_back_and_is_replaced() -> None:
    """The rank stays, the id is fresh, and the job ends with all data seen."""
    job = _job(shards=200)
    job.kill(("worker", 1))
    job.calm(5)
    fresh = job.state.nodes.at_rank("worker", 1)
    assert fresh is not None
    assert fresh.id == 2
    job.calm(100)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[1] == set(range(200))


def test_a_lost_chief_is_named_anew_in_the_same_version() -> None:
    """With parameter servers the model lives on: the version stays, its chief is another."""
    job = _job()
    job.kill(("worker", 0))
    job.calm(5)
    active = job.published.directive.active
    assert active is not None
    assert (active.version, active.chief_id) == (1, 2)


def test_a_lost_chief_without_servers_means_a_new_version() -> None:
    """Without parameter servers the model dies with the chief."""
    job = _job("worker=1")
    job.save_periodically()
    job.calm(2)
    job.kill(("worker", 0))
    job.calm(8)
    active = job.published.directive.active
    assert active is not None
    assert active.version == 2
    assert active.restore is not None


def test_a_fatal_error_of_the_chief_fails_the_job() -> None:
    """The reason and the node stand in the job's status."""
    job = _job()
    job.kill(("worker", 0), code=1)
    job.calm(3)
    failure = views.job_status(job.state, job.now)["failure"]
    assert failure["reason"] == "CriticalNodeFailed"
    assert "worker-0" in failure["message"]


def test_the_step_goes_back_as_soon_as_the_model_is_lost() -> None:
    """Whoever waits for a step is not told of one that has to be made again."""
    job = _job()
    job.save_periodically()
    saved = job.state.checkpoints.newest
    assert saved is not None
    job.calm(3)
    assert job.state.steps.step > saved.step
    job.kill(("ps", 0))
    job.observe()
    assert views.job_status(job.state, job.now)["progress"]["step"] == saved.step


def test_the_job_goes_on_without_a_worker_that_is_given_up() -> None:
    """A worker that nobody depends on may fail for good; its data is trained by the others."""
    job = _job(shards=100)
    job.kill(("worker", 1), code=1)
    job.calm(80)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[1] == set(range(100))


def test_silent_nodes_count_as_failed_and_their_pods_go() -> None:
    """After the time-out a node is replaced, and its pod is removed since it may still run."""
    job = _job(heartbeat=60.0)
    job.now += 50
    for ref in sorted(job.pods):
        if ref != ("worker", 1):
            job.act(ref)
    job.now += 20
    job.settle()
    lost = job.state.nodes.find("worker", 1)
    assert lost is not None
    assert lost.exit_reason is ExitReason.NO_HEARTBEAT
    job.now += 31
    job.observe()
    job.commit()
    assert ("worker", 1) in {ref for plan in job.plans.values() for ref in plan.remove}


def test_nodes_that_were_lost_are_forgotten_when_their_pods_are_gone() -> None:
    """However many workers a long job loses, its state does not grow; a pod that may still run is not
    forgotten.
    """
    job = _job(heartbeat=60.0)
    for lost in (1, 2, 3):
        for _ in range(4):
            job.now += 20
            for ref in sorted(job.pods):
                if ref != ("worker", lost):
                    job.act(ref)
        job.observe()
        assert job.state.nodes.find("worker", lost) is not None
        job.calm(5)
        assert ("worker", lost) not in job.pods
    assert {str(node) for node in job.state.nodes} == {"ps-0", "ps-1", "worker-0", "worker-4"}


def _trained(shards: int = 40) -> SimulatedJob:
    """A job whose data is consumed; its workers are about to end."""
    job = _job(shards=shards)
    job.save_periodically()
    for _ in range(shards):
        for worker in (0, 1):
            if not job.state.shards.finished:
                job.act(("worker", worker))
                job.commit()
    assert job.state.shards.finished
    return job


def test_a_server_lost_after_the_chief_has_ended_brings_the_chief_back() -> None:
    """Model and data go back to the checkpoint; without a chief nobody would restore it, and the others would
    wait.
    """
    job = _trained()
    job.act(("worker", 0))
    job.commit()
    assert job.pods["worker", 0].exit_code == 0
    job.kill(("ps", 0))
    job.observe()
    chief = job.state.chief
    assert chief is not None
    assert (chief.id, chief.live) == (2, True)
    job.calm(40)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[2] == set(range(40))


@pytest.mark.parametrize("told", [True, False], ids=["workers said so", "all seen at once"])
def test_a_server_lost_after_all_workers_have_ended_changes_nothing(told: bool) -> None:
    """The job is over, also where the master hears of the workers' end and of the server's in one moment: it
    succeeds, and nobody is started again.
    """
    job = _trained()
    for worker in (0, 1):
        if told:
            job.act(("worker", worker))
        else:
            job.pods["worker", worker].phase, job.pods["worker", worker].exit_code = PodPhase.SUCCEEDED, 0
    made = list(job.created)
    job.kill(("ps", 0))
    job.calm(40)

    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.created == made
    assert {node.id for node in job.state.nodes.of("worker")} == {0, 1}


def test_a_plan_of_the_master_that_somebody_deletes_is_made_again() -> None:
    """Nodes whose ScalePlan was deleted before it was carried out are asked for by another one."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=1,worker=1")), 1000)
    job.observe()
    job.delete_plan("job-scaleplan-1")
    job.observe()
    job.now += 11
    job.calm(3)
    assert "job-scaleplan-2" in job.plans
    assert job.state.versions.settled


def test_a_critical_node_pending_for_too_long_fails_the_job() -> None:
    """A job that can't get its nodes says so."""
    roles = {"ps": RoleSettings(replicas=1), "worker": RoleSettings(replicas=1)}
    job = SimulatedJob(JobSettings("job", "default", roles, timeouts=Timeouts(pending=100.0)))
    job.control()
    job.observe()
    job.now += 200
    job.settle()
    assert job.state.outcome is not None
    assert job.state.outcome.reason == "PendingTimeout"


def test_waiting_while_suspended_is_no_pending_timeout() -> None:
    """A job that was suspended before its pods ran has all its time after it is resumed."""
    roles = {"worker": RoleSettings(replicas=1)}
    running = JobSettings("job", "default", roles, timeouts=Timeouts(pending=100.0))
    job = SimulatedJob(running)
    job.state.settings = JobSettings("job", "default", roles, suspend=True, timeouts=running.timeouts)
    job.settle()
    job.now += 3600
    job.settle()
    job.state.settings = running
    job.settle()
    assert job.state.outcome is None
    job.now += 101
    job.settle()
    assert job.state.outcome is not None


def test_workers_that_leave_data_behind_fail_the_job() -> None:
    """All workers ended well, but not all data was consumed: that is no success."""
    job = _job("worker=1")
    job.kill(("worker", 0), code=0)
    job.pods["worker", 0].phase = type(job.pods["worker", 0].phase).SUCCEEDED
    job.calm(2)
    assert job.state.outcome is not None
    assert job.state.outcome.reason == "DataNotConsumed"


def test_a_suspended_job_replaces_nobody_and_resumes_with_its_data() -> None:
    """Nodes that are taken away while suspended are no failures; afterwards all ranks come back. People are
    told of a resume, and of no killed nodes; a node that is killed later is told as ever.
    """
    job = _job(shards=300)
    job.save_periodically()
    running = job.settings
    suspended = JobSettings(
        running.name, running.namespace, running.roles, suspend=True, timeouts=running.timeouts
    )
    job.settings = job.state.settings = suspended
    for ref in list(job.pods):
        del job.pods[ref]
    job.observe()
    job.commit()
    assert len(job.created) == 4
    job.settings = running
    job.crash()
    job.calm(10)
    assert len(_servers(job)) == 2
    assert job.state.versions.active is not None
    assert job.state.versions.active.restore is not None
    assert job.state.restarts.counts == {"Resume": 1}
    job.kill(("worker", 3))
    job.calm(5)
    assert job.state.restarts.counts == {"Resume": 1, "Killed": 1}
    job.calm(150)
    assert job.state.outcome is not None
    assert job.models[job.state.versions.active.number] == set(range(300))


def test_the_stored_state_stays_small() -> None:
    """A big job's document is far below what a ConfigMap holds."""
    job = _job("ps=8,worker=64", shards=1_000_000)
    job.calm(5)
    assert len(job.stored) < 60_000
    assert StoredState.from_json(job.stored).to_json() == job.stored


def test_names_of_pods_are_those_of_the_nodes() -> None:
    """A plan names pods; the registry finds their nodes."""
    job = _job()
    found = job.state.nodes.by_pod("job", names.node_name("job", "ps", 1))
    assert found is not None
    assert (found.type, found.id) == ("ps", 1)
