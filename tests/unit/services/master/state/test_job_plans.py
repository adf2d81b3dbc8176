"""Plans of whole jobs in memory: what succeeds, what fails and is taken back, and what a plan waits for."""

from collections.abc import Iterable
from typing import Any

import pytest

from edl_workflows.core.jobs.scale_plan.model import (
    NodeResource,
    PodMeta,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.datasets import AckRequest, LeaseRequest
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.observations import PodPhase
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from tests.unit.services.master.simulated_job import DATA, SimulatedJob, SimulatedPod
from tests.unit.services.master.state.whole_jobs import (
    await_plan_phase,
    make_job,
    plan_spec,
    run_plan,
    servers_of,
)


@pytest.mark.parametrize(
    ("spec", "servers", "workers"),
    [
        pytest.param(plan_spec(ps=3), (0, 1, 2), 2, id="one more server"),
        pytest.param(plan_spec(ps=1), (0,), 2, id="one server less, the highest rank"),
        pytest.param(plan_spec(migrate=(0,)), (2, 1), 2, id="a migrated server keeps its rank"),
        pytest.param(plan_spec(ps=3, migrate=(1,)), (0, 2, 3), 2, id="both"),
        pytest.param(plan_spec(worker=4), (0, 1), 4, id="more workers, same version"),
        pytest.param(plan_spec(worker=1), (0, 1), 1, id="fewer workers, the chief stays"),
        pytest.param(plan_spec(ps=1, worker=3), (0,), 3, id="servers and workers"),
    ],
)
def test_plans_reach_what_they_ask_for(spec: ScalePlanSpec, servers: tuple[int, ...], workers: int) -> None:
    """A plan succeeds when exactly the wanted nodes train; servers that are not needed are gone."""
    job = make_job()
    assert run_plan(job, spec) is ScalePlanPhase.SUCCEEDED
    assert servers_of(job) == servers
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
    """While a plan waits, its status has a reason and a message, written once. When the plan begins, they
    disappear."""
    settings = JobSettings("job", "default", parse_nodes("ps=2,worker=2"), timeouts=Timeouts(verdict=0.0))
    job = SilentJob(settings, 10_000)
    job.silent, job.idle = frozenset(silent), idle
    job.submit("plan", plan_spec(worker=3))
    job.calm(10)
    assert job.state.plan is not None
    status, serial = views.plan_status(job.state.plan), job.state.plan.serial
    assert status["phase"] == "Pending"
    assert status["reason"] == "Waiting"
    assert says in status["message"]
    job.calm(10)
    assert job.state.plan.serial == serial
    job.silent, job.idle = frozenset(), False
    await_plan_phase(job, ScalePlanPhase.SCALING)
    assert job.state.plan is not None
    assert views.plan_status(job.state.plan)["message"] == ""
    job.calm(15)
    assert job.plans["plan"].phase is ScalePlanPhase.SUCCEEDED


def test_a_plan_during_a_recovery_says_so() -> None:
    """A plan that waits during a recovery names the node that it waits for."""
    job = SilentJob(
        JobSettings("job", "default", parse_nodes("ps=2,worker=2"), timeouts=Timeouts(verdict=0.0))
    )
    job.calm(5)
    job.silent = frozenset({("ps", 2)})
    job.kill(("ps", 0))
    job.calm(3)
    job.submit("plan", plan_spec(worker=3))
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
    """One plan migrates servers and workers. Each node keeps its rank and gets its new size, the old nodes
    are removed, and all data is trained."""
    job = make_job(shards=60)
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
    """If the new worker stays pending, the plan fails, and servers and workers are again as they were
    before."""
    job = make_job()
    job.submit("plan", _both().model_copy(update={"step_timeout_seconds": 20}))
    for _ in range(60):
        for _ in job.everything():
            if ("worker", 2) in job.pods:
                job.pods["worker", 2].phase = PodPhase.PENDING
    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    assert servers_of(job) == (0, 1)
    (worker,) = [node for node in job.state.nodes.live("worker") if node.rank == 1]
    assert worker.registered
    assert worker.resource == NodeResource()


def test_a_chief_that_has_ended_saves_nothing() -> None:
    """The chief found all data consumed just before it was asked to save. The plan ends at once instead of
    timing out, and the worker that had stopped for the switch is released, so that the job ends."""
    job = make_job()
    job.submit("plan", plan_spec(ps=3))
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
    """The status lists each step with its times, and the result has the step from which training resumed."""
    job = make_job()
    seen: list[ScalePlanPhase] = []
    job.submit("plan", plan_spec(ps=3))
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
        (plan_spec(checkpoint=True), ["Pending", "Checkpointing", "Checkpointed"]),
        (plan_spec(worker=3), ["Pending", "Scaling"]),
        (plan_spec(worker=3, checkpoint=True), ["Pending", "Checkpointing", "Checkpointed", "Scaling"]),
    ],
)
def test_plans_that_change_no_server_are_short(spec: ScalePlanSpec, phases: list[str]) -> None:
    """A plan for a checkpoint ends with the checkpoint. Plans for workers need none. The status lists exactly
    these steps, and no plan makes another cluster version."""
    job = make_job()
    statuses: list[dict[str, Any]] = []
    job.submit("plan", spec)
    for _ in range(12):
        job.calm(1)
        if job.state.plan is not None:
            statuses.append(views.plan_status(job.state.plan))
    assert job.plans["plan"].phase is ScalePlanPhase.SUCCEEDED
    assert [step["phase"] for step in statuses[-1]["steps"]] == phases
    assert job.state.versions.last_number == 1


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (plan_spec(ps=0), "spec.replicaResourceSpecs.ps.replicas"),
        (plan_spec(worker=0), "spec.replicaResourceSpecs.worker.replicas"),
        (plan_spec(migrate=(9,)), "spec.migratePods.0.name"),
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
    """The plan fails before anything begins, and its message names the invalid field."""
    job = make_job()
    messages: list[str] = []
    job.submit("plan", spec)
    for _ in range(6):
        messages += [job.state.plan.message for _ in job.everything() if job.state.plan is not None]
    assert job.plans["plan"].phase is ScalePlanPhase.FAILED
    assert any(says in message for message in messages)
    assert job.state.versions.last_number == 1


def test_a_rank_means_the_server_that_holds_it_now() -> None:
    """A plan names ranks. A server that took over a rank in an earlier plan is found by it."""
    job = make_job()
    for plan in ("first", "second"):
        job.submit(plan, ScalePlanSpec(migrate_ranks={0: NodeResource(cpu="2")}))
        job.calm(15)
        assert job.plans[plan].phase is ScalePlanPhase.SUCCEEDED

    assert servers_of(job) == (3, 1)


@pytest.mark.parametrize(
    "phase", [ScalePlanPhase.MIGRATING, ScalePlanPhase.RESTARTING, ScalePlanPhase.VERIFYING]
)
def test_a_new_server_that_dies_takes_the_plan_back(phase: ScalePlanPhase) -> None:
    """If the new server dies at any time before training resumes, the plan is rolled back and the job
    continues with the old servers."""
    job = make_job()
    job.submit("plan", plan_spec(ps=3))
    await_plan_phase(job, phase)
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
    assert len(servers_of(job)) == 2
    assert {ref[1] for ref, pod in job.pods.items() if ref[0] == "ps" and pod.runs} == set(servers_of(job))
    assert job.state.versions.settled


def test_a_switch_that_does_not_train_is_rolled_back() -> None:
    """If no step is made within the time limit, a new version of the old servers continues with the variables
    that they hold, which are those of the switch checkpoint."""
    job = make_job()
    job.submit("plan", plan_spec(ps=3, step_timeout_seconds=50))
    await_plan_phase(job, ScalePlanPhase.VERIFYING)
    switch = job.state.versions.active
    assert switch is not None
    job.now += 60
    job.settle()
    assert job.state.plan is not None
    assert job.state.plan.reason == "StepTimeout"
    job.calm(20)
    active = job.state.versions.active
    assert active is not None
    assert (active.members, active.processes, active.restore) == ((0, 1), (1, 1), None)
    assert active.number > switch.number
    assert job.state.left_at is not None
    assert job.state.left_at.ref == switch.restore
    assert job.models[active.number] > job.saved[job.state.left_at.uri]
    assert job.plans["plan"].phase is ScalePlanPhase.FAILED


def test_a_deleted_plan_is_taken_back() -> None:
    """If a plan is deleted before the switch, the old cluster stays and all new pods are removed."""
    job = make_job()
    job.submit("plan", plan_spec(ps=3, worker=4))
    await_plan_phase(job, ScalePlanPhase.MIGRATING)
    job.calm(1)
    job.delete_plan("plan")
    job.calm(15)
    assert servers_of(job) == (0, 1)
    assert sorted(ref for ref, pod in job.pods.items() if pod.runs) == [
        ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1),
    ]  # fmt: skip


def test_a_deleted_plan_of_workers_is_taken_back_and_the_next_one_begins() -> None:
    """If a plan that adds too many workers is deleted while they start, the job gets back its former number,
    and the plan that waited is carried out."""
    job = make_job()
    job.submit("too-many", plan_spec(worker=9))
    job.submit("fewer", plan_spec(worker=1))
    await_plan_phase(job, ScalePlanPhase.SCALING)
    assert job.state.plan is not None
    assert job.state.plan.name == "too-many"
    job.delete_plan("too-many")
    job.settle()
    assert job.state.counts["worker"] == 2
    job.calm(15)
    assert job.plans["fewer"].phase is ScalePlanPhase.SUCCEEDED
    assert [ref for ref, pod in job.pods.items() if pod.runs and ref[0] == "worker"] == [("worker", 0)]


def test_plans_run_one_after_another_in_order() -> None:
    """The second plan waits for the first, and both are carried out."""
    job = make_job()
    job.submit("a", plan_spec(ps=3))
    job.submit("b", plan_spec(ps=1))
    phases = []
    for _ in range(30):
        job.calm(1)
        phases.append((job.plans["a"].phase, job.plans["b"].phase))
    assert phases[-1] == (ScalePlanPhase.SUCCEEDED, ScalePlanPhase.SUCCEEDED)
    assert all(second is None for first, second in phases if first is not ScalePlanPhase.SUCCEEDED)
    assert len(servers_of(job)) == 1


def test_a_plan_of_the_master_that_somebody_deletes_is_made_again() -> None:
    """If somebody deletes the master's ScalePlan before its pods are created, the master creates another
    one."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=1,worker=1")), 1000)
    job.observe()
    job.delete_plan("job-scaleplan-1")
    job.observe()
    job.now += 11
    job.calm(3)
    assert "job-scaleplan-2" in job.plans
    assert job.state.versions.settled
