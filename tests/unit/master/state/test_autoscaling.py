"""A master's own plans: when the optimizer is asked, what may be carried out, what becomes of a plan, and
what is shown.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import AutoscalingStatus, OptimizeMode
from edl_workflows.jobs.scale_plan.model import (
    NodeResource,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.master.state import views
from edl_workflows.master.state.autoscale import autoscale_steps
from edl_workflows.master.state.autoscale.autoscale_steps import planned_job, usage_of
from edl_workflows.master.state.autoscale.own_plans import AutoscalingIntervals
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.settings import (
    AutoscalingSettings,
    JobSettings,
    RendezvousLimits,
    RoleSettings,
    Timeouts,
)
from edl_workflows.master.state.stored_state import StoredState
from edl_workflows.protocol.nodes import Usage
from edl_workflows.scaling.dlrover.ps_stages import OptimizerStage
from tests.unit.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.master.simulated_job import SimulatedJob, SimulatedPod

GIB = 2.0**30
FIRST = "job-optimize-1"
SINGLE = AutoscalingSettings(OptimizeMode.SINGLE_JOB, allowed=True)
SHOWN_ONLY = AutoscalingSettings(OptimizeMode.SINGLE_JOB)


SIZE = NodeResource(cpu="4", memory="4Gi")


def _settings(optimizing: AutoscalingSettings = SINGLE, **more: Any) -> JobSettings:
    roles = {"ps": RoleSettings(1, resource=SIZE), "worker": RoleSettings(1, resource=SIZE)}
    limits = {"cpu": 40.0, "memory": 64 * GIB}
    said: dict[str, Any] = {"roles": roles, "limits": limits, "optimizing": optimizing, **more}
    return JobSettings("job", "default", **said)


def _usage(ps: float, worker: float = 2.0) -> Callable[[SimulatedPod], Usage]:
    def used(pod: SimulatedPod) -> Usage:
        return Usage(cpu=ps if pod.type == names.PS_TYPE else worker, memory=1000.0)

    return used


def _job(settings: JobSettings | None = None, ps: float = 1.2) -> SimulatedJob:
    job = SimulatedJob(settings or _settings(), shards=100_000)
    job.usage = _usage(ps)
    job.calm(5)
    assert job.state.versions.settled
    return job


def _pass(job: SimulatedJob, seconds: float) -> None:
    """Time passes; the autoscaler samples every 15 s."""
    until = job.now + seconds
    while job.now < until:
        job.calm(3)
        job.now += 12.0
        job.look()
        job.commit()


def _until_decided(job: SimulatedJob) -> None:
    """Up to a decision that is not stored yet."""
    for _ in range(40):
        job.calm(3)
        job.now += 12.0
        job.look()
        if job.state.autoscaling.open is not None:
            return
    raise AssertionError("nothing was decided")


def _shown(job: SimulatedJob) -> AutoscalingStatus:
    assert job.state.autoscaling.shown is not None
    return job.state.autoscaling.shown


def test_a_job_grows_by_a_plan_of_its_own() -> None:
    """A server that is used by 30 % serves three times as many workers: a ScalePlan says so with its reason,
    is carried out as anybody's, and the job is a stage further.
    """
    job = _job()
    _pass(job, 250)
    plan = job.plans[FIRST]
    assert plan.spec is not None
    assert plan.spec.replica_resource_specs["worker"].replicas == 3
    assert "the busiest parameter server uses 30%" in plan.spec.reason
    assert plan.phase is ScalePlanPhase.SUCCEEDED
    assert len(job.state.nodes.live("worker")) == 3
    assert job.state.autoscaling.progress.stage is not OptimizerStage.WORKER_INITIAL
    assert f"{FIRST} was carried out" in _shown(job).notes[0]


def test_without_permission_the_plan_is_only_shown() -> None:
    """The status says what would be done, by whom, and why; nothing is done, and the job stays at its
    stage.
    """
    job = _job(_settings(SHOWN_ONLY))
    _pass(job, 600)
    shown = _shown(job)
    assert not [plan for plan in job.plans.values() if plan.spec is not None]
    assert (shown.optimizer, shown.stage) == ("local", OptimizerStage.WORKER_INITIAL)
    assert shown.replica_resource_specs["worker"].replicas == 3
    assert "1 → 3 nodes" in shown.reasons["worker"]
    assert views.job_status(job.state, job.now)["autoscaling"]["stage"] == "job_stage_worker_initial"


def test_a_job_in_mode_manual_is_not_planned() -> None:
    """Nothing is asked, done or shown; what was shown goes when the mode becomes manual."""
    manual = _settings(AutoscalingSettings(OptimizeMode.MANUAL, allowed=True))
    job = _job(manual)
    _pass(job, 600)
    assert job.state.autoscaling.shown is None
    other = _job(_settings(SHOWN_ONLY))
    _pass(other, 300)
    other.state.settings = manual
    other.settle()
    assert views.job_status(other.state, other.now)["autoscaling"] is None


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
    """Bounds of the annotation, limits of the job, and roles that no plan may change."""
    job = _job(_settings(**change), ps=0.4)
    _pass(job, 250)
    assert job.state.counts["worker"] == expected


@pytest.mark.parametrize(
    "why", ["suspended", "another plan", "a version changes", "nothing trained", "ended"]
)
def test_nobody_is_asked_in_between(why: str) -> None:
    """Not while the job is suspended, another plan is under way, its servers change, or before it trains."""
    job = _job(_settings(SHOWN_ONLY))
    _pass(job, 200)
    state = job.state
    assert autoscale_steps.next_request(state, job.now) is not None
    if why == "suspended":
        state.settings = dataclasses.replace(state.settings, suspend=True)
    elif why == "another plan":
        job.submit(
            "theirs", ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=2)})
        )
        job.observe()
    elif why == "a version changes":
        job.kill(("ps", 0))
        job.observe()
    elif why == "nothing trained":
        state.steps = dataclasses.replace(state.steps, step=0)
    else:
        job.settings = state.settings
        for ref in [("worker", 0)]:
            job.kill(ref, 1)
        job.observe()
        assert state.outcome is not None
    assert autoscale_steps.next_request(state, job.now) is None


def test_an_answer_about_a_job_that_changed_is_forgotten() -> None:
    """A slow optimizer's answer is not carried out on another job than it was asked about."""
    job = _job(_settings(SHOWN_ONLY))
    _pass(job, 200)
    job.state.settings = _settings()
    asked = autoscale_steps.next_request(job.state, job.now)
    assert asked is not None
    answer = autoscale_steps.local_answer(asked, job.now)
    assert not answer.plan.empty
    job.state.counts["worker"] = 2
    autoscale_steps.take_answer(job.state, asked, answer, job.now)
    assert job.state.autoscaling.open is None
    job.state.counts["worker"] = 1
    autoscale_steps.take_answer(job.state, asked, answer, job.now)
    assert job.state.autoscaling.open is not None


def test_plans_keep_their_distance() -> None:
    """Two plans are at least 300 s apart, however much there is to do."""
    job = _job()
    decided = []
    for _ in range(60):
        _pass(job, 15)
        at = job.state.autoscaling.decided_at
        if at and at not in decided:
            decided.append(at)
    assert len(decided) >= 2
    assert min(b - a for a, b in itertools.pairwise(decided)) >= 300


def test_a_plan_that_fails_is_not_repeated_at_once() -> None:
    """After each failure the job is left alone twice as long, says why, and is asked about from where it
    was.
    """
    job = _job()
    decided: list[float] = []
    for _ in range(400):
        _pass(job, 15)
        about = job.state.autoscaling
        if about.open is not None:
            decided.append(about.decided_at)
            job.observe()
            job.delete_plan(about.open.name("job"))
            job.observe()
            assert job.state.autoscaling.open is None
            assert "was deleted" in job.state.autoscaling.problem
    gaps = [b - a for a, b in itertools.pairwise(decided)]
    assert 2 <= len(gaps) <= 4
    assert all(after > 1.8 * before for before, after in itertools.pairwise(gaps))
    assert job.state.autoscaling.progress.stage is OptimizerStage.CREATE
    assert any("the last plan failed" in note for note in _shown(job).notes)


def test_a_plan_that_is_refused_is_given_up() -> None:
    """The API's refusal stands in the job's status, and the next plan has another name."""
    job = _job()
    _until_decided(job)
    decided = job.state.autoscaling
    autoscale_steps.note_refused_plan(job.state, 7, "not this one", job.now)
    assert job.state.autoscaling == decided
    autoscale_steps.note_refused_plan(job.state, 1, "the webhook says no", job.now)
    assert job.state.autoscaling.open is None
    assert "the webhook says no" in _shown(job).notes[-1]
    assert job.state.autoscaling.last_number == 1


def test_a_plan_does_not_begin_once_autoscaling_is_off() -> None:
    """A scale stage switches autoscaling off and its number stays, even if the master's own plan was decided
    just before.
    """
    job = _job()
    _until_decided(job)
    job.commit()
    job.submit("theirs", ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=2)}))
    job.state.settings = _settings(SHOWN_ONLY)
    job.calm(20)
    assert job.plans[FIRST].phase is ScalePlanPhase.FAILED
    assert job.plans["theirs"].phase is ScalePlanPhase.SUCCEEDED
    assert job.state.counts["worker"] == 2


def test_a_plan_that_nobody_made_is_withdrawn() -> None:
    """Decided and not yet made when autoscaling is switched off: it is never made."""
    job = _job()
    _until_decided(job)
    job.state.settings = _settings(SHOWN_ONLY)
    job.settle()
    job.calm(5)
    assert FIRST not in job.plans


@pytest.mark.parametrize("every", [1, 2, 3])
def test_crashes_neither_lose_nor_repeat_a_plan(every: int) -> None:
    """The master dies again and again, before and after each store: every decision that was stored becomes
    one plan, which is carried out.
    """
    job = _job()
    for round_ in range(45):
        job.calm(1)
        job.now += 14.0
        if round_ % (7 * every) == 0:
            job.crash()
            job.state.settings = job.settings
        job.look()
        if round_ % every == 0:
            job.commit()
    job.calm(20)
    own = [plan for name, plan in job.plans.items() if "-optimize-" in name]
    assert [plan.name for plan in own] == [f"job-optimize-{n + 1}" for n in range(len(own))]
    assert len(own) == job.state.autoscaling.last_number >= 1
    assert all(plan.phase is ScalePlanPhase.SUCCEEDED for plan in own)


def test_a_hot_server_is_migrated() -> None:
    """In stage RUNNING, a server that uses 95 % of its cores gets more of them by a plan that migrates it."""
    roles = {"ps": RoleSettings(2, resource=SIZE), "worker": RoleSettings(2, resource=SIZE)}
    job = SimulatedJob(_settings(roles=roles), shards=100_000)
    job.usage = lambda pod: Usage(cpu=3.8 if (pod.type, pod.id) == ("ps", 0) else 1.0, memory=1000.0)
    job.calm(5)
    job.state.autoscaling = dataclasses.replace(
        job.state.autoscaling,
        progress=dataclasses.replace(job.state.autoscaling.progress, stage=OptimizerStage.RUNNING),
    )
    _pass(job, 200)
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
    """One worker and one server, each with a fifth of the limits; no node is made before, and no ScalePlan is
    needed.
    """
    open_roles = {"ps": RoleSettings(0), "worker": RoleSettings(0)}
    state = JobState(_settings(roles=open_roles))
    asked = autoscale_steps.first_request(state, 0.0)
    assert asked is not None
    autoscale_steps.take_first_answer(state, asked, autoscale_steps.local_answer(asked, 0.0), 0.0)
    assert state.counts == {"ps": 1, "worker": 1}
    assert state.sizes["worker"] == NodeResource(cpu="8000m", memory="8192Mi")
    assert state.autoscaling.progress.stage is OptimizerStage.WORKER_INITIAL
    only_shown = JobState(_settings(SHOWN_ONLY, roles=open_roles))
    asked = autoscale_steps.first_request(only_shown, 0.0)
    assert asked is not None
    autoscale_steps.take_first_answer(only_shown, asked, autoscale_steps.local_answer(asked, 0.0), 0.0)
    assert only_shown.counts == {"ps": 0, "worker": 0}
    assert autoscale_steps.first_request(_job().state, 0.0) is None


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_a_node_that_finds_no_place_is_made_smaller(role: str) -> None:
    """Pending for 900 s, it is made anew with half of everything; the job, which could never have begun,
    trains.
    """
    big = {name: RoleSettings(1, resource=NodeResource(cpu="16", memory="32Gi")) for name in ("ps", "worker")}
    job = SimulatedJob(_settings(roles=big, limits={"cpu": 60.0, "memory": 100 * GIB}))
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
    assert "pending for" in next(iter(_shown(job).reasons.values()))
    assert node.why.startswith(f"{role}-0 is made smaller: cpu 16 → 8 cores, memory 32768 → 16384 MiB")


def test_a_node_that_ran_out_of_memory_comes_back_with_more() -> None:
    """Twice as much, as far as the whole job's limit leaves room, whoever decides about the job's size."""
    settings = _settings(AutoscalingSettings(), limits={"cpu": 40.0, "memory": 11 * GIB})
    job = _job(settings)
    job.kill(("worker", 0), 247)
    job.calm(5)
    chief = job.state.chief
    assert chief is not None
    assert (chief.id, chief.resource.memory) == (1, "7168Mi")
    assert chief.why == "worker-0 ran out of memory; worker-1 gets 7168Mi"


def test_nodes_that_leave_are_not_counted() -> None:
    """A released node's pod may end slowly; what it uses is nobody's."""
    job = _job()
    job.submit("up", ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=2)}))
    job.calm(10)
    assert len(planned_job(job.state, job.now).of("worker")) == 2
    job.submit("down", ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=1)}))
    while not any(node.released for node in job.state.nodes):
        job.observe()
        job.commit()
        job.record()
    assert len(job.state.nodes.of("worker")) == 2
    assert len(planned_job(job.state, job.now).of("worker")) == 1
    assert len(usage_of(job.state)) == 2


def test_a_document_of_an_older_master_is_read() -> None:
    """It has no such field; the job is past its creation. A new document comes back as it was."""
    job = _job()
    old = json.loads(job.stored)
    old.pop("autoscaling", None)
    state = JobState(job.settings, StoredState.from_json(json.dumps(old)), watches_pods=True)
    assert state.autoscaling.last_number == 0
    assert autoscale_steps.first_request(state, 0.0) is None
    _pass(job, 200)
    assert StoredState.from_json(job.state.to_json()).to_json() == job.state.to_json()


def test_intervals_keep_their_proportion() -> None:
    """Upstream's: samples each 15 s, looks each 30 s, plans each 300 s, after 60 s of the same nodes."""
    assert (
        AutoscalingIntervals().sample,
        AutoscalingIntervals().look,
        AutoscalingIntervals().steady,
        AutoscalingIntervals().back_off(0),
    ) == (15, 30, 60, 300)
    assert Timeouts().autoscale == AutoscalingIntervals().period
    assert (
        AutoscalingIntervals(10).sample,
        AutoscalingIntervals(10).back_off(2),
        AutoscalingIntervals(300).back_off(99),
    ) == (0.5, 40, 3600)


absurd = st.sampled_from([0.0, 1.0, 3.9, 4.1, 1e4, 1e30, 1e308])


@settings(deadline=None, max_examples=8)
@given(st.lists(st.tuples(absurd, absurd, absurd), min_size=2, max_size=5), st.floats(-1e9, 1e9))
def test_absurd_reports_make_no_wild_plan(reports: list[tuple[float, float, float]], jump: float) -> None:
    """Whatever nodes say they use, and wherever the clock jumps: no crash, limits hold, and there is a reason
    or a note.
    """
    job = _job()
    for ps, worker, memory in reports:
        job.usage = lambda pod, ps=ps, worker=worker, memory=memory: Usage(  # type: ignore[misc]
            cpu=ps if pod.type == "ps" else worker, memory=memory
        )
        _pass(job, 45)
    job.now = max(job.now + jump, 1.0)
    job.state.shift_times(jump)
    _pass(job, 200)
    planned = planned_job(job.state, job.now)
    assert sum(node.resource.cpu or 0.0 for node in planned.nodes) <= 40.0
    assert planned.roles["worker"].count <= 60
    shown = _shown(job)
    assert shown.reasons or shown.notes


def _collective(pace: Callable[[int], int], workers: int = 1, **said: Any) -> SimulatedCollectiveJob:
    settings = _settings(
        roles={"worker": RoleSettings(workers, resource=SIZE)},
        collective=True,
        rendezvous=RendezvousLimits(max_nodes=4, waiting_timeout=5.0),
        **said,
    )
    job = SimulatedCollectiveJob(settings, steps=10_000_000)
    job.pace = pace
    job.usage = _usage(0.0)
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
    """By the speed measured at each count, through plans of its own; it comes to rest where one more would
    not pay.
    """
    job = _collective(pace)
    _pass(job, 1_500)
    assert job.state.counts == {"worker": workers}
    assert job.state.versions.active is not None
    assert len(job.state.versions.active.members) == workers
    plans = [plan for plan in job.plans.values() if plan.spec is not None]
    assert {plan.phase for plan in plans} == {ScalePlanPhase.SUCCEEDED}
    before = len(plans)
    _pass(job, 700)
    assert len([plan for plan in job.plans.values() if plan.spec is not None]) == before, "it rests"
    assert job.state.counts == {"worker": workers}


def test_a_collective_job_keeps_to_its_bounds() -> None:
    """The user's bounds, the job's limits and the rendezvous hold; nothing is decided before all workers
    run.
    """
    bound = AutoscalingSettings(OptimizeMode.SINGLE_JOB, allowed=True, workers=(1, 2))
    job = _collective(lambda n: n, optimizing=bound)
    assert autoscale_steps.first_request(JobState(job.settings), 0.0) is None
    _pass(job, 1_000)
    assert job.state.counts == {"worker": 2}
    small = _collective(lambda n: n, limits={"cpu": 8.0, "memory": 64 * GIB})
    _pass(small, 1_000)
    assert small.state.counts == {"worker": 2}
    small.kill(("worker", 1))
    small.observe()
    asked = autoscale_steps.next_request(small.state, small.now)
    assert asked is None or autoscale_steps.local_answer(asked, small.now).plan.waiting
