"""What a master plans for its own job: the number and the size of its nodes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from edl_workflows.core.jobs.elastic_job.model import OptimizeMode
from edl_workflows.core.jobs.scale_plan.model import (
    NodeResource,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.core.protocol.nodes import Usage
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerStage
from edl_workflows.services.master.state.autoscale import autoscale_steps
from edl_workflows.services.master.state.autoscale.autoscale_steps import optimizer_job, usage_of
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import AutoscalingSettings, RendezvousLimits, RoleSettings
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.simulated_job import SimulatedJob
from tests.unit.services.master.state.autoscaled_jobs import (
    FIRST,
    GIB,
    SHOWN_ONLY,
    SINGLE,
    SIZE,
    autoscaled_job,
    constant_usage,
    make_settings,
    pass_time,
    shown_plan,
)


def test_a_job_grows_by_a_plan_of_its_own() -> None:
    """If the parameter server uses 30 % of its CPU, it can serve three times as many workers. The master
    creates a ScalePlan with that reason, the plan succeeds, and the optimizer moves on to its next stage."""
    job = autoscaled_job()
    pass_time(job, 250)
    plan = job.plans[FIRST]
    assert plan.spec is not None
    assert plan.spec.replica_resource_specs["worker"].replicas == 3
    assert "the busiest parameter server uses 30%" in plan.spec.reason
    assert plan.phase is ScalePlanPhase.SUCCEEDED
    assert len(job.state.nodes.live("worker")) == 3
    assert job.state.autoscaling.progress.stage is not OptimizerStage.WORKER_INITIAL
    assert f"{FIRST} was carried out" in shown_plan(job).notes[0]


def test_advice_for_a_size_that_a_pipeline_changes_is_withdrawn() -> None:
    """When somebody's plan changes the job, advice for the former size goes: it would be printed against what
    was just chosen. The next advice is measured with the new size."""
    job = autoscaled_job(make_settings(SHOWN_ONLY))
    pass_time(job, 250)
    assert shown_plan(job).replica_resource_specs["worker"].replicas == 3
    wanted = {"worker": ReplicaResourceSpec(replicas=2)}
    job.submit("scale", ScalePlanSpec(owner_job="job", replica_resource_specs=wanted))
    job.calm(1)
    assert shown_plan(job).replica_resource_specs == {}
    assert shown_plan(job).notes == ["ScalePlan scale changes the job"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            {"optimizing": dataclasses.replace(SINGLE, workers=(1, 2))}, 2, id="the annotation's most"
        ),
        pytest.param(
            {
                "optimizing": dataclasses.replace(SINGLE, workers=(10, 20)),
                "limits": {"cpu": 80.0, "memory": 99 * GIB},
            },
            10,
            id="the annotation's least",
        ),
        pytest.param({"limits": {"cpu": 13.0, "memory": 64 * GIB}}, 2, id="resourceLimits"),
        pytest.param(
            {
                "roles": {
                    "ps": RoleSettings(1, resource=SIZE),
                    "worker": RoleSettings(1, resource=SIZE, auto_scale=False),
                }
            },
            1,
            id="autoScale: false",
        ),
    ],
)
def test_what_the_user_says_wins(change: dict[str, Any], expected: int) -> None:
    """Bounds of the annotation, limits of the job, and roles that no plan may change take precedence."""
    job = autoscaled_job(make_settings(**change), ps=0.4)
    pass_time(job, 250)
    assert job.state.counts["worker"] == expected


def test_a_hot_server_is_migrated() -> None:
    """In the stage RUNNING, a plan migrates a parameter server that uses 95 % of its cores to a pod with
    more."""
    roles = {"ps": RoleSettings(2, resource=SIZE), "worker": RoleSettings(2, resource=SIZE)}
    job = SimulatedJob(make_settings(roles=roles), shards=100_000)
    job.usage = lambda pod: Usage(cpu=3.8 if (pod.type, pod.id) == ("ps", 0) else 1.0, memory=1000.0)
    job.calm(5)
    job.state.autoscaling = dataclasses.replace(
        job.state.autoscaling,
        progress=dataclasses.replace(job.state.autoscaling.progress, stage=OptimizerStage.RUNNING),
    )
    pass_time(job, 200)
    plan = job.plans[FIRST]
    assert plan.phase is ScalePlanPhase.SUCCEEDED
    assert plan.spec is not None
    assert "job-edljob-ps-0" in [pod.name for pod in plan.spec.migrate_pods]
    assert "is hot" in plan.spec.reason
    rank = job.state.nodes.at_rank("ps", 0)
    assert rank is not None
    assert rank.id >= 2
    assert float((rank.resource.cpu or "0").removesuffix("m")) > 4000


def test_a_new_job_begins_with_what_its_user_left_open() -> None:
    """Where the user gave no replicas, the job starts with one worker and one parameter server, each with a
    fifth of the limits. This needs no ScalePlan and happens before any pod is created."""
    open_roles = {"ps": RoleSettings(0), "worker": RoleSettings(0)}
    state = JobState(make_settings(roles=open_roles))
    asked = autoscale_steps.first_request(state, 0.0)
    assert asked is not None
    autoscale_steps.apply_first_answer(state, asked, autoscale_steps.local_answer(asked, 0.0), 0.0)
    assert state.counts == {"ps": 1, "worker": 1}
    assert state.sizes["worker"] == NodeResource(cpu="8000m", memory="8192Mi")
    assert state.autoscaling.progress.stage is OptimizerStage.WORKER_INITIAL
    only_shown = JobState(make_settings(SHOWN_ONLY, roles=open_roles))
    asked = autoscale_steps.first_request(only_shown, 0.0)
    assert asked is not None
    autoscale_steps.apply_first_answer(only_shown, asked, autoscale_steps.local_answer(asked, 0.0), 0.0)
    assert only_shown.counts == {"ps": 0, "worker": 0}
    assert autoscale_steps.first_request(autoscaled_job().state, 0.0) is None


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_a_node_that_finds_no_place_is_made_smaller(role: str) -> None:
    """A node that is pending for 900 s is replaced by one with half the resources, so that a job that would
    never have started trains."""
    big = {name: RoleSettings(1, resource=NodeResource(cpu="16", memory="32Gi")) for name in ("ps", "worker")}
    job = SimulatedJob(make_settings(roles=big, limits={"cpu": 60.0, "memory": 100 * GIB}))
    for _ in range(100):
        job.observe()
        job.commit()
        job.control()
        for ref, pod in job.pods.items():
            node = job.state.nodes.find(*ref)
            if ref[0] != role or (node is not None and node.resource.cpu == "8000m"):
                pod.phase = type(pod.phase).RUNNING
            job.act(ref)
        job.now += 30.0
        if job.state.versions.settled:
            break
    assert job.state.outcome is None
    assert job.now > 1900
    (node,) = job.state.nodes.live(role)
    assert (node.id, node.resource.cpu, node.resource.memory) == (1, "8000m", "16384Mi")
    assert "pending for" in next(iter(shown_plan(job).reasons.values()))
    assert node.why.startswith(f"{role}-0 is made smaller: cpu 16 → 8 cores, memory 32768 → 16384 MiB")


def test_a_node_that_ran_out_of_memory_comes_back_with_more() -> None:
    """The replacement has up to twice the memory, as far as the limit of the whole job allows. This does not
    depend on who decides about the number of nodes."""
    settings = make_settings(AutoscalingSettings(), limits={"cpu": 40.0, "memory": 11 * GIB})
    job = autoscaled_job(settings)
    job.kill(("worker", 0), 247)
    job.calm(5)
    chief = job.state.chief
    assert chief is not None
    assert (chief.id, chief.resource.memory) == (1, "7168Mi")
    assert chief.why == "worker-0 ran out of memory; worker-1 gets 7168Mi"


def test_nodes_that_leave_are_not_counted() -> None:
    """The usage of a released node is not counted, even while its pod is still terminating."""
    job = autoscaled_job()
    job.submit("up", ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=2)}))
    job.calm(10)
    assert len(optimizer_job(job.state, job.now).of("worker")) == 2
    job.submit("down", ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=1)}))
    while not any(node.released for node in job.state.nodes):
        job.observe()
        job.commit()
        job.record()
    assert len(job.state.nodes.of("worker")) == 2
    assert len(optimizer_job(job.state, job.now).of("worker")) == 1
    assert len(usage_of(job.state)) == 2


absurd = st.sampled_from([0.0, 1.0, 3.9, 4.1, 1e4, 1e30, 1e308])


@settings(deadline=None, max_examples=8)
@given(st.lists(st.tuples(absurd, absurd, absurd), min_size=2, max_size=5), st.floats(-1e9, 1e9))
def test_absurd_reports_make_no_wild_plan(reports: list[tuple[float, float, float]], jump: float) -> None:
    """Whatever usage nodes report and however the clock jumps, planning does not crash, keeps the limits, and
    gives a reason or a note."""
    job = autoscaled_job()
    for ps, worker, memory in reports:
        job.usage = lambda pod, ps=ps, worker=worker, memory=memory: Usage(  # type: ignore[misc]
            cpu=ps if pod.type == "ps" else worker, memory=memory
        )
        pass_time(job, 45)
    job.now = max(job.now + jump, 1.0)
    job.state.shift_times(jump)
    pass_time(job, 200)
    planned = optimizer_job(job.state, job.now)
    assert sum(node.resource.cpu or 0.0 for node in planned.nodes) <= 40.0
    assert planned.roles["worker"].count <= 60
    shown = shown_plan(job)
    assert shown.reasons or shown.notes


def _collective(pace: Callable[[int], int], workers: int = 1, **said: Any) -> SimulatedCollectiveJob:
    settings = make_settings(
        roles={"worker": RoleSettings(workers, resource=SIZE)},
        collective=True,
        rendezvous=RendezvousLimits(max_nodes=4, waiting_timeout=5.0),
        **said,
    )
    job = SimulatedCollectiveJob(settings, steps=10_000_000)
    job.pace = pace
    job.usage = constant_usage(0.0)
    job.calm(6)
    assert job.state.versions.settled
    return job


@pytest.mark.parametrize(
    ("pace", "workers"),
    [
        pytest.param(lambda n: n, 4, id="each worker brings as much as the first"),
        pytest.param(lambda n: 1, 1, id="no worker brings anything"),
        pytest.param(lambda n: {1: 2, 2: 4, 3: 4, 4: 4}[n], 2, id="two pay"),
    ],
)
def test_a_collective_job_climbs_as_long_as_workers_pay(pace: Callable[[int], int], workers: int) -> None:
    """The master adds workers, by its own plans, as long as the measured speed pays for one more. Then it
    stops planning."""
    job = _collective(pace)
    pass_time(job, 1_500)
    assert job.state.counts == {"worker": workers}
    assert job.state.versions.active is not None
    assert len(job.state.versions.active.members) == workers
    plans = [plan for plan in job.plans.values() if plan.spec is not None]
    assert {plan.phase for plan in plans} == {ScalePlanPhase.SUCCEEDED}
    before = len(plans)
    pass_time(job, 700)
    assert len([plan for plan in job.plans.values() if plan.spec is not None]) == before, "it rests"
    assert job.state.counts == {"worker": workers}


def test_a_collective_job_keeps_to_its_bounds() -> None:
    """The number of workers stays within the user's bounds and the job's limits. Nothing is planned before
    all workers run."""
    bound = AutoscalingSettings(OptimizeMode.SINGLE_JOB, allowed=True, workers=(1, 2))
    job = _collective(lambda n: n, optimizing=bound)
    assert autoscale_steps.first_request(JobState(job.settings), 0.0) is None
    pass_time(job, 1_000)
    assert job.state.counts == {"worker": 2}
    small = _collective(lambda n: n, limits={"cpu": 8.0, "memory": 64 * GIB})
    pass_time(small, 1_000)
    assert small.state.counts == {"worker": 2}
    small.kill(("worker", 1))
    small.observe()
    asked = autoscale_steps.next_request(small.state, small.now)
    assert asked is None or autoscale_steps.local_answer(asked, small.now).advice.waiting
