"""When a master asks its optimizer, and what becomes of the plans."""

import dataclasses
import itertools
import json

import pytest

from edl_workflows.core.jobs.elastic_job.model import OptimizeMode
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerStage
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.autoscale import autoscale_steps
from edl_workflows.services.master.state.autoscale.autoscale_state import AutoscalingIntervals
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import AutoscalingSettings, Timeouts
from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.state.autoscaled_jobs import (
    FIRST,
    SHOWN_ONLY,
    autoscaled_job,
    make_settings,
    pass_time,
    run_until_decided,
    shown_plan,
)


def test_without_permission_the_plan_is_only_shown() -> None:
    """The status shows the plan, its optimizer and its reasons, but nothing is done, and the optimizer stays
    at its stage."""
    job = autoscaled_job(make_settings(SHOWN_ONLY))
    pass_time(job, 600)
    shown = shown_plan(job)
    assert not [plan for plan in job.plans.values() if plan.spec is not None]
    assert (shown.optimizer, shown.stage) == ("local", OptimizerStage.WORKER_INITIAL)
    assert shown.replica_resource_specs["worker"].replicas == 3
    assert "1 → 3 nodes" in shown.reasons["worker"]
    assert views.job_status(job.state, job.now)["autoscaling"]["stage"] == "job_stage_worker_initial"


def test_a_job_in_mode_manual_is_not_planned() -> None:
    """In mode manual nothing is planned. A plan that is shown disappears from the status when the mode
    becomes manual."""
    manual = make_settings(AutoscalingSettings(OptimizeMode.MANUAL, allowed=True))
    job = autoscaled_job(manual)
    pass_time(job, 600)
    assert job.state.autoscaling.shown is None
    other = autoscaled_job(make_settings(SHOWN_ONLY))
    pass_time(other, 300)
    other.state.settings = manual
    other.settle()
    assert views.job_status(other.state, other.now)["autoscaling"] is None


@pytest.mark.parametrize(
    "why", ["suspended", "another plan", "a version changes", "nothing trained", "ended"]
)
def test_nobody_is_asked_in_between(why: str) -> None:
    """The optimizer is not asked while the job is suspended, another plan runs, the cluster version changes,
    before the first step, or after the end."""
    job = autoscaled_job(make_settings(SHOWN_ONLY))
    pass_time(job, 200)
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
    """An answer of a slow optimizer is dropped if the job has changed since the question."""
    job = autoscaled_job(make_settings(SHOWN_ONLY))
    pass_time(job, 200)
    job.state.settings = make_settings()
    asked = autoscale_steps.next_request(job.state, job.now)
    assert asked is not None
    answer = autoscale_steps.local_answer(asked, job.now)
    assert not answer.advice.empty
    job.state.counts["worker"] = 2
    autoscale_steps.apply_answer(job.state, asked, answer, job.now)
    assert job.state.autoscaling.open is None
    job.state.counts["worker"] = 1
    autoscale_steps.apply_answer(job.state, asked, answer, job.now)
    assert job.state.autoscaling.open is not None


def test_plans_keep_their_distance() -> None:
    """The master decides on a plan at most once in 300 s."""
    job = autoscaled_job()
    decided = []
    for _ in range(60):
        pass_time(job, 15)
        at = job.state.autoscaling.decided_at
        if at and at not in decided:
            decided.append(at)
    assert len(decided) >= 2
    assert min(b - a for a, b in itertools.pairwise(decided)) >= 300


def test_a_plan_that_fails_is_not_repeated_at_once() -> None:
    """After each failed plan, the time until the next one doubles, the status gives the failure, and the
    optimizer keeps its stage."""
    job = autoscaled_job()
    decided: list[float] = []
    for _ in range(400):
        pass_time(job, 15)
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
    assert any("the last plan failed" in note for note in shown_plan(job).notes)


def test_a_plan_that_is_refused_is_given_up() -> None:
    """The status has the API server's rejection, and the next plan has another name."""
    job = autoscaled_job()
    run_until_decided(job)
    decided = job.state.autoscaling
    autoscale_steps.note_refused_plan(job.state, 7, "not this one", job.now)
    assert job.state.autoscaling == decided
    autoscale_steps.note_refused_plan(job.state, 1, "the webhook says no", job.now)
    assert job.state.autoscaling.open is None
    assert "the webhook says no" in shown_plan(job).notes[-1]
    assert job.state.autoscaling.last_number == 1


def test_a_plan_does_not_begin_once_autoscaling_is_off() -> None:
    """A scale stage switches autoscaling off and its number stays, even if the master's own plan was decided
    just before.
    """
    job = autoscaled_job()
    run_until_decided(job)
    job.commit()
    job.submit("theirs", ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=2)}))
    job.state.settings = make_settings(SHOWN_ONLY)
    job.calm(20)
    assert job.plans[FIRST].phase is ScalePlanPhase.FAILED
    assert job.plans["theirs"].phase is ScalePlanPhase.SUCCEEDED
    assert job.state.counts["worker"] == 2


def test_a_plan_that_nobody_made_is_withdrawn() -> None:
    """If autoscaling is switched off after a plan was decided and before it was created, it is never
    created."""
    job = autoscaled_job()
    run_until_decided(job)
    job.state.settings = make_settings(SHOWN_ONLY)
    job.settle()
    job.calm(5)
    assert FIRST not in job.plans


@pytest.mark.parametrize("every", [1, 2, 3])
def test_crashes_neither_lose_nor_repeat_a_plan(every: int) -> None:
    """The master dies again and again, before and after each store: every decision that was stored becomes
    one plan, which is carried out.
    """
    job = autoscaled_job()
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


def test_a_document_of_an_older_master_is_read() -> None:
    """A document of an older master has no field ``autoscaling``; the job then counts as created. A document
    of today is read and stored unchanged."""
    job = autoscaled_job()
    old = json.loads(job.stored)
    old.pop("autoscaling", None)
    state = JobState(job.settings, StoredState.from_json(json.dumps(old)), watches_pods=True)
    assert state.autoscaling.last_number == 0
    assert autoscale_steps.first_request(state, 0.0) is None
    pass_time(job, 200)
    assert StoredState.from_json(job.state.to_json()).to_json() == job.state.to_json()


def test_intervals_keep_their_proportion() -> None:
    """The default intervals are those of upstream: a sample each 15 s, a look each 30 s after 60 s without a
    change of nodes, and a plan each 300 s. Other periods scale them, within bounds."""
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
