"""The pure decision whether a stage's goal is reached."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.exceptions import (
    EdlError,
    JobDisappearedError,
    JobFailedError,
    JobFinishedError,
    PlanFailedError,
)
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.jobs.view import JobPhase, JobView, Progress, Replicas
from edl_workflows.pipelines.stages.driver import GoalWait
from edl_workflows.pipelines.waiting.goals import (
    AdviceGoal,
    ChangeGoal,
    ExistsGoal,
    Goal,
    GoneGoal,
    Handle,
    IfFinished,
    JobGoal,
    UnfinishedGoal,
)
from edl_workflows.pipelines.waiting.observed import ObservedObject, read_object
from edl_workflows.pipelines.waiting.results import Done, Failed, InProgress, Skipped, evaluate_goal

_RUNNING = JobView(
    "ElasticJob", "mnist", "default", "uid-1", 1, 1, JobPhase.RUNNING, progress=Progress(step=50)
)


def _view(phase: str, **changes: Any) -> JobView:
    return replace(_RUNNING, phase=JobPhase(phase), **changes)


def _plan(phase: str, reason: str = "") -> ObservedObject:
    return read_object(
        "ScalePlan",
        {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ScalePlan",
            "metadata": {"name": "p", "namespace": "default", "uid": "uid-1"},
            "spec": {"ownerJob": "mnist"},
            "status": {"phase": phase, "reason": reason} if phase else {},
        },
    )


def _handle(goal: Goal, uid: str = "uid-1") -> Handle:
    kind = "ScalePlan" if isinstance(goal, ChangeGoal) else "ElasticJob"
    return Handle(kind=kind, namespace="default", name="mnist", goal=goal, uid=uid)


def _job_goal(*phases: str, step: int | None = None, condition: str = "") -> JobGoal:
    return JobGoal(phases=tuple(JobPhase(p) for p in phases), step=step, condition=condition)


_READY = {"Ready": "True"}
_MORE = AutoscalingStatus.model_validate({"stage": "s", "replicaResourceSpecs": {"worker": {"replicas": 3}}})
_SAME = AutoscalingStatus(stage="s")

_ROWS: dict[str, tuple[Goal, ObservedObject, type[InProgress | Done] | type[EdlError]]] = {
    "phase reached": (_job_goal("Running"), _view("Running"), Done),
    "runs without a node": (JobGoal(phases=(JobPhase.RUNNING,), nodes=1), _view("Running"), InProgress),
    "runs with a node": (
        JobGoal(phases=(JobPhase.RUNNING,), nodes=1),
        _view("Running", replicas={"ps": Replicas(2, 0), "worker": Replicas(2, 1)}),
        Done,
    ),
    "ran to its end": (JobGoal(phases=(JobPhase.RUNNING,), nodes=1), _view("Succeeded"), Done),
    "another phase": (_job_goal("Suspended"), _view("Running"), InProgress),
    "one of two phases": (_job_goal("Suspended", "Running"), _view("Running"), Done),
    "status older than the spec": (_job_goal("Running"), _view("Running", generation=2), InProgress),
    "succeeded job's spec edited": (_job_goal("Succeeded"), _view("Succeeded", generation=2), Done),
    "a job that has succeeded has run": (_job_goal("Running"), _view("Succeeded"), Done),
    "failed": (_job_goal("Succeeded"), _view("Failed"), JobFailedError),
    "failed, as wanted": (_job_goal("Failed"), _view("Failed"), Done),
    "suspension of a job that succeeded": (_job_goal("Suspended"), _view("Succeeded"), JobFinishedError),
    "step reached": (_job_goal(step=50), _view("Scaling"), Done),
    "step not reached": (_job_goal(step=51), _view("Running"), InProgress),
    "ended before the step": (_job_goal(step=51), _view("Succeeded"), JobFinishedError),
    "failed before the step": (_job_goal(step=51), _view("Failed"), JobFailedError),
    "change of a job that has succeeded": (UnfinishedGoal(), _view("Succeeded"), JobFinishedError),
    "change of a job that has failed": (UnfinishedGoal(), _view("Failed"), JobFailedError),
    "phase without the step": (_job_goal("Running", step=51), _view("Running"), InProgress),
    "condition holds": (_job_goal(condition="Ready"), _view("Running", conditions=_READY), Done),
    "condition False wanted": (
        _job_goal(condition="Ready=False"),
        _view("Running", conditions=_READY),
        InProgress,
    ),
    "condition unknown": (_job_goal(condition="Ready"), _view("Running"), InProgress),
    "deleted": (_job_goal("Running"), None, JobDisappearedError),
    "replaced": (_job_goal("Running"), _view("Running", uid="uid-2"), JobDisappearedError),
    "exists": (ExistsGoal(), _view("Pending"), Done),
    "gone": (GoneGoal(), None, Done),
    "gone, and another came": (GoneGoal(), _view("Running", uid="uid-2"), Done),
    "still there": (GoneGoal(), _view("Running"), InProgress),
    "not planned yet": (AdviceGoal(), _view("Running"), InProgress),
    "planned": (AdviceGoal(change=True), _view("Running", planned=_MORE), Done),
    "planned before it runs": (AdviceGoal(), _view("Pending", planned=_MORE), Done),
    "planned to stay": (AdviceGoal(), _view("Running", planned=_SAME), Done),
    "planned to stay, a change is wanted": (
        AdviceGoal(change=True),
        _view("Running", planned=_SAME),
        InProgress,
    ),
    "planned before a change": (AdviceGoal(), _view("Restarting", planned=_MORE), InProgress),
    "planned before its end": (AdviceGoal(), _view("Succeeded", planned=_MORE), JobFinishedError),
    "planned before its failure": (AdviceGoal(), _view("Failed", planned=_MORE), JobFailedError),
    "plan without status": (ChangeGoal(), _plan(""), InProgress),
    "plan migrates": (ChangeGoal(), _plan("Migrating"), InProgress),
    "plan past Migrating": (ChangeGoal.model_validate({"phase": "Restarting"}), _plan("Verifying"), Done),
    "plan in Migrating": (ChangeGoal.model_validate({"phase": "Restarting"}), _plan("Migrating"), InProgress),
    "plan that scales workers": (
        ChangeGoal.model_validate({"phase": "Restarting"}),
        _plan("Scaling"),
        InProgress,
    ),
    "plan succeeded": (ChangeGoal(), _plan("Succeeded"), Done),
    "plan failed": (ChangeGoal(), _plan("Failed"), PlanFailedError),
    "plan too late": (ChangeGoal(), _plan("Failed", "JobFinished"), JobFinishedError),
    "plan of a job that failed": (ChangeGoal(), _plan("Failed", "JobFailed"), JobFailedError),
}


@pytest.mark.parametrize("name", _ROWS)
def test_outcome(name: str) -> None:
    """Each row gives the result of `evaluate_goal` for a goal and the state of an object."""
    goal, seen, expected = _ROWS[name]

    result = evaluate_goal(_handle(goal), seen)

    assert expected is (type(result.error) if isinstance(result, Failed) else type(result))


_FINISHED = [name for name, (_, _, expected) in _ROWS.items() if expected is JobFinishedError]


@pytest.mark.parametrize("name", _FINISHED)
def test_a_job_that_succeeds_early_is_what_the_caller_says(name: str) -> None:
    """For every change and wait, a job that succeeds early makes the stage skipped, failed or successful, as
    the caller chose. Its outputs are those of the job."""
    goal, seen, _ = _ROWS[name]
    handle = _handle(goal)

    skipped = evaluate_goal(handle.model_copy(update={"if_finished": IfFinished.SKIP}), seen)
    done = evaluate_goal(handle.model_copy(update={"if_finished": IfFinished.SUCCEED}), seen)
    failed = evaluate_goal(handle.model_copy(update={"if_finished": IfFinished.FAIL}), seen)

    assert isinstance(skipped, Skipped)
    assert isinstance(done, Done)
    assert isinstance(failed, Failed)
    assert skipped.outputs == done.outputs
    assert skipped.reason == str(failed.error)
    assert "mnist" in skipped.reason
    assert isinstance(goal, AdviceGoal) is (done.outputs.plan is not None)


def test_a_job_that_fails_is_an_error_whatever_the_caller_says() -> None:
    """The caller's choice is about jobs that succeed early only. A failed job is always an error."""
    for name in ("failed before the step", "change of a job that has failed", "plan of a job that failed"):
        goal, seen, _ = _ROWS[name]
        for choice in IfFinished:
            result = evaluate_goal(_handle(goal).model_copy(update={"if_finished": choice}), seen)
            assert isinstance(result, Failed), (name, choice)
            assert isinstance(result.error, JobFailedError)


def test_a_job_that_was_never_seen_is_waited_for() -> None:
    """A wait for a job that does not exist yet continues, since a sensor may start before the job is
    submitted."""
    assert isinstance(evaluate_goal(_handle(_job_goal("Running"), uid=""), None), InProgress)


def test_outputs_are_small_and_camel_case() -> None:
    """The outputs hold what later tasks need, with camel-case names and without a copy of the object."""
    result = evaluate_goal(_handle(ChangeGoal()), _plan("Succeeded"))

    assert isinstance(result, Done)
    assert result.outputs.to_dict() == {
        "kind": "ScalePlan", "namespace": "default", "name": "mnist", "uid": "uid-1", "job": "mnist",
        "phase": "Succeeded", "replicas": {},
    }  # fmt: skip


@pytest.mark.parametrize("metrics", [{}, {"accuracy": 0.98, "loss": 0.1}], ids=["none", "two"])
def test_outputs_of_a_wait_have_the_newest_metrics(metrics: dict[str, float]) -> None:
    """The outputs have the newest metrics as numbers, and no key for a program that reports none."""
    job = _view("Running", progress=Progress(step=3, metrics=metrics))
    result = evaluate_goal(_handle(_job_goal("Running")), job)

    assert isinstance(result, Done)
    assert result.outputs.to_dict().get("metrics", {}) == metrics
    assert ("metrics" in result.outputs.to_dict()) is bool(metrics)


def test_a_handle_survives_the_way_through_json() -> None:
    """A handle can be stored as JSON and read again."""
    handle = _handle(_job_goal("Running", step=3))

    assert Handle.model_validate(handle.model_dump(mode="json")) == handle


def test_who_follows_a_job_hears_each_warning_once() -> None:
    """A wait notifies once of each warning in the job's status."""
    said: list[str] = []
    follow = GoalWait(_handle(_job_goal("Succeeded")), notify=said.append)
    status = {"phase": "Running", "observedGeneration": 1}
    for warnings in (
        [],
        ["the disk is full"],
        ["the disk is full", "ps-0 is slow"],
        [],
        ["the disk is full"],
    ):
        head = {
            "name": "mnist",
            "namespace": "default",
            "uid": "uid-1",
            "generation": 1,
            "resourceVersion": "1",
        }
        manifest = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": head}
        worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}
        spec = {"replicaSpecs": {"worker": worker}}
        follow.take({**manifest, "spec": spec, "status": {**status, "warnings": warnings}})
    job = "ElasticJob default/mnist"
    full = f"{job} warns: the disk is full"
    assert said == [f"{job} is Running", full, f"{job} warns: ps-0 is slow", full]


def test_who_follows_a_deletion_hears_of_nothing_else() -> None:
    """A wait for a deletion tells that the job is being deleted and at last that it is gone, but not its
    phase."""
    said: list[str] = []
    follow = GoalWait(_handle(GoneGoal()), notify=said.append)
    head = {"name": "mnist", "namespace": "default", "uid": "uid-1", "resourceVersion": "1"}
    manifest = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": head}

    for phase in ("Running", "Failed"):
        assert follow.take({**manifest, "spec": {}, "status": {"phase": phase}}) is None
    assert isinstance(follow.take(None), Done)

    assert said == ["ElasticJob default/mnist is being deleted", "ElasticJob default/mnist is gone"]


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("ElasticJob", "edl describe mnist --namespace default"),
        ("TFJob", "edl describe mnist --kind TFJob --namespace default"),
        ("ScalePlan", "edl describe mnist --kind ScalePlan --namespace default"),
    ],
)
def test_objects_are_described_with_edl(kind: str, command: str) -> None:
    """The command that shows a job or a plan needs no kubectl."""
    handle = Handle(kind=kind, namespace="default", name="mnist", goal=GoneGoal())

    assert handle.describe_command == command


def test_a_plan_in_progress_says_what_it_waits_for() -> None:
    """The message of a plan that can't begin yet has the reason, as the plan's status tells it."""
    plan = _plan("Pending")
    assert isinstance(plan, ScalePlan)
    status = plan.status.model_copy(update={"message": "waits for ScalePlan p-1, which goes before"})

    result = evaluate_goal(_handle(ChangeGoal()), plan.model_copy(update={"status": status}))

    assert isinstance(result, InProgress)
    assert result.message == "is Pending: waits for ScalePlan p-1, which goes before"
