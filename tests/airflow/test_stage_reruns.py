"""What each task comes to when it is retried, cleared or marked, with its job in each state: the operators
and the trigger themselves, against a real API server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)

from edl_workflows.airflow import triggers
from edl_workflows.airflow.hooks.task_state import DELETED
from edl_workflows.operators import base
from edl_workflows.operators.base import StageTask
from edl_workflows.operators.elastic_job import (
    AutoscaleJobOperator,
    CancelJobOperator,
    DeleteElasticJobOperator,
    ResumeElasticJobOperator,
    SubmitElasticJobOperator,
    SuspendElasticJobOperator,
)
from edl_workflows.operators.scale_plan import (
    ApplyPlanOperator,
    CheckpointElasticJobOperator,
    MigrateParameterServersOperator,
    PlanScaleOperator,
    ScaleElasticJobOperator,
)
from edl_workflows.pipelines.stages.catalog import STAGES as CATALOG
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, SCALE_PLANS
from edl_workflows.sensors.elastic_job import ElasticJobSensor
from tests.airflow.support import IN_AIRFLOW, create_ps_pod, elastic_job, eventually, jobs, plans, pods
from tests.airflow.test_deferral import Store, TaskInstance, context

pytestmark = [*IN_AIRFLOW, pytest.mark.usefixtures("connection")]

RUNNING, SUCCEEDED, FAILED, GONE = STATES = ("running", "succeeded", "failed", "gone")
MIGRATE: dict[int | str, Any] = {0: {"cpu": "2"}}

STAGES: dict[str, Callable[..., StageTask]] = {
    "submit": lambda **kw: SubmitElasticJobOperator(manifest=elastic_job("mnist"), **kw),
    "wait": lambda **kw: ElasticJobSensor(name="mnist", **kw),
    "wait for a step": lambda **kw: ElasticJobSensor(name="mnist", step=200, **kw),
    "scale": lambda **kw: ScaleElasticJobOperator(job="mnist", replicas={"worker": 3}, **kw),
    "migrate": lambda **kw: MigrateParameterServersOperator(job="mnist", migrate=MIGRATE, **kw),
    "checkpoint": lambda **kw: CheckpointElasticJobOperator(job="mnist", **kw),
    "plan": lambda **kw: PlanScaleOperator(job="mnist", wait_for_change=True, **kw),
    "apply": lambda **kw: ApplyPlanOperator(
        job="mnist", plan={"replicas": {"worker": {"replicas": 3}}}, **kw
    ),
    "suspend": lambda **kw: SuspendElasticJobOperator(name="mnist", **kw),
    "resume": lambda **kw: ResumeElasticJobOperator(name="mnist", **kw),
    "autoscale": lambda **kw: AutoscaleJobOperator(name="mnist", **kw),
    "cancel": lambda **kw: CancelJobOperator(name="mnist", **kw),
    "delete": lambda **kw: DeleteElasticJobOperator(name="mnist", **kw),
}


def status_of(state: str, step: int = 100) -> dict[str, Any]:
    """The status of the job."""
    phase = {SUCCEEDED: "Succeeded", FAILED: "Failed"}.get(state, "Running")
    return {
        "phase": phase,
        "observedGeneration": 9,
        "progress": {"step": step},
        "checkpoint": {"uri": "/ck/100", "step": 100},
    }


def create_job(cluster: Cluster, stage: str) -> None:
    """The job that the stage works on, at step 100."""
    if stage != "submit":
        client.create(cluster, elastic_job("mnist"))
        client.patch_status(cluster, ELASTIC_JOBS, "mnist", status_of(RUNNING))
        if not pods(cluster):
            create_ps_pod(cluster, "mnist", node_id=0, rank=0)


def attempt(stage: str, store: Store, number: int = 1) -> str:
    """Run the task as a worker does; what it comes to."""
    task = STAGES[stage](task_id="task", deferrable=True, retries=1)
    try:
        task.execute(context(store, try_number=number, max_tries=1))
    except TaskDeferred:
        return "waits"
    except AirflowSkipException:
        return "is skipped"
    except AirflowFailException:
        return "fails for good"
    except AirflowException as error:
        return f"fails {error}"
    return "succeeds"


def reach_goal(cluster: Cluster, stage: str) -> None:
    """Let the goal of the stage be reached, and more: its plan, or its job, succeeds."""
    for name in plans(cluster):
        client.patch_status(cluster, SCALE_PLANS, name, {"phase": "Succeeded"})
    if jobs(cluster):
        planned = {"stage": "s", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
        phase = {"submit": "Succeeded", "wait": "Succeeded", "suspend": "Suspended"}.get(stage, "Running")
        reached = {**status_of(RUNNING, 200), "phase": phase, "autoscaling": planned}
        client.patch_status(cluster, ELASTIC_JOBS, "mnist", reached)


def bring_into(cluster: Cluster, state: str) -> None:
    """Bring the job into a state."""
    if state == GONE:
        if jobs(cluster):
            client.delete(cluster, ELASTIC_JOBS, "mnist")
        eventually(lambda: not jobs(cluster), "the job's deletion")
    elif jobs(cluster)["mnist"].get("status", {}).get("phase") not in ("Succeeded", "Failed"):
        client.patch_status(cluster, ELASTIC_JOBS, "mnist", status_of(state))


PLANS = "scale, migrate, checkpoint, apply"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-dag.md"
WAITS, SUCCEEDS, SKIPPED, REPLACED = "waits", "succeeds", "is skipped", "a new job trains"
FOR_GOOD, RETRIED, UNREACHABLE = "fails for good", "fails", ""
AGAIN: dict[tuple[str, str], tuple[str, str, str, str]] = {
    ("submit", "retried"): (WAITS, SUCCEEDS, REPLACED, REPLACED),
    ("submit", "cleared"): (UNREACHABLE, REPLACED, UNREACHABLE, REPLACED),
    ("wait", "retried"): (WAITS, SUCCEEDS, FOR_GOOD, WAITS),
    ("wait", "cleared"): (UNREACHABLE, SUCCEEDS, UNREACHABLE, WAITS),
    ("wait for a step", "retried"): (WAITS, SKIPPED, FOR_GOOD, WAITS),
    ("wait for a step", "cleared"): (WAITS, SKIPPED, FOR_GOOD, WAITS),
    # The controller ends a plan whose job has ended: the task then is skipped, or fails.
    (PLANS, "retried"): (WAITS, WAITS, WAITS, RETRIED),
    (PLANS, "cleared"): (WAITS, SUCCEEDS, SUCCEEDS, RETRIED),
    ("plan", "retried"): (WAITS, SKIPPED, FOR_GOOD, RETRIED),
    ("plan", "cleared"): (SUCCEEDS, SKIPPED, FOR_GOOD, RETRIED),
    ("suspend", "retried"): (WAITS, SKIPPED, FOR_GOOD, RETRIED),
    ("suspend", "cleared"): (WAITS, SKIPPED, FOR_GOOD, RETRIED),
    ("resume", "retried"): (WAITS, SKIPPED, FOR_GOOD, RETRIED),
    ("autoscale", "cleared"): (SUCCEEDS, SKIPPED, FOR_GOOD, RETRIED),
    ("cancel", "cleared"): (SUCCEEDS, SUCCEEDS, SUCCEEDS, SUCCEEDS),
    ("delete", "cleared"): (SUCCEEDS, SUCCEEDS, SUCCEEDS, SUCCEEDS),
}
"""What the next attempt comes to with a job that is running, succeeded, failed or gone. Retried: the attempt
before still waited; cleared: it had succeeded. Unreachable: the job that it waited for had ended."""
ROWS = [
    pytest.param(stage, action, state, outcome, id=f"{stage} {action}, job {state}")
    for (stages, action), outcomes in AGAIN.items()
    for stage in stages.split(", ")
    for state, outcome in zip(STATES, outcomes, strict=True)
    if outcome != UNREACHABLE
]


def test_every_stage_is_in_the_table() -> None:
    """Each stage that a task carries out has its rows."""
    here = {str(getattr(make(task_id="task"), "stage_name", "")) for make in STAGES.values()}

    assert here == {stage.name for stage in CATALOG} - {"wait-plan", "collect"}, (
        "add the stage to STAGES and AGAIN"
    )
    assert STAGES.keys() == {stage for stages, _ in AGAIN for stage in stages.split(", ")}


@pytest.mark.parametrize(("stage", "action", "state", "outcome"), ROWS)
def test_a_task_that_runs_again(stage: str, action: str, state: str, outcome: str, cluster: Cluster) -> None:
    """A task that is retried or cleared ends as the table says. Only the task that submits creates a job, and
    never two."""
    store = Store()
    create_job(cluster, stage)
    attempt(stage, store)
    if action == "cleared":
        reach_goal(cluster, stage)
        attempt(stage, store)
        if stage == "delete":  # somebody has made one of the same name
            create_job(cluster, stage)
    bring_into(cluster, state)
    before = jobs(cluster)

    found = attempt(stage, store, 2)

    after = jobs(cluster)
    assert len(after) <= 1
    assert len(plans(cluster)) <= 1
    if outcome == REPLACED:
        assert found == WAITS
        assert uid_of(after) != uid_of(before)
    else:
        assert found.split(" cannot get")[0] == outcome
        assert uid_of(after) == ("" if stage == "delete" else uid_of(before))
    if state == SUCCEEDED:
        assert outcome in {WAITS, SUCCEEDS, SKIPPED, REPLACED}, "green work does not turn red"


def uid_of(found: dict[str, Any]) -> str:
    """The uid of the job; "" if there is none."""
    return str(found["mnist"]["metadata"]["uid"]) if found else ""


MARKS = {"marked failed": "failed", "marked success": "success", "run deleted": DELETED, "cleared": None}


@pytest.mark.parametrize("mode", ["worker", "triggerer"])
@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("stage", ["submit", "wait", *PLANS.split(", "), "plan", "suspend"])
def test_a_task_that_is_stopped_while_it_waits(
    stage: str, mark: str, mode: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is stopped while it waits cancels what it has created, unless its next attempt continues:
    the submitted job, or a plan that has not begun. It changes nothing else, and nothing that has
    succeeded."""
    for ended in (True, False):
        create_job(cluster, stage)
        task, trigger = waiting(stage)
        if ended:
            reach_goal(cluster, stage)
        for module in (base, triggers):
            monkeypatch.setattr(module, "task_state", lambda _ti: MARKS[mark])
        before, planned = uid_of(jobs(cluster)), len(plans(cluster))

        task.on_kill() if mode == "worker" else asyncio.run(trigger.on_kill())

        cancelled = not ended and mark != "cleared"
        job = "" if cancelled and stage == "submit" else before
        left = 0 if cancelled else planned
        eventually(
            lambda: (uid_of(jobs(cluster)), len(plans(cluster))) == (job, left),  # noqa: B023 - called here
            "the cancellation",
        )
        clean(cluster)


def waiting(stage: str) -> tuple[StageTask, triggers.ElasticJobTrigger]:
    """The task in its worker, and its trigger."""
    task = STAGES[stage](task_id="task", deferrable=True)
    with pytest.raises(TaskDeferred) as raised:
        task.execute(context(Store()))
    trigger = raised.value.trigger
    assert isinstance(trigger, triggers.ElasticJobTrigger)
    trigger.task_instance = TaskInstance()  # type: ignore[assignment]
    return task, trigger


def clean(cluster: Cluster) -> None:
    """Remove what the stages left."""
    for name in plans(cluster):
        client.delete(cluster, SCALE_PLANS, name)
    for name in pods(cluster):
        client.delete(cluster, PODS, name)
    bring_into(cluster, GONE)
    eventually(lambda: not plans(cluster) and not pods(cluster), "the end of plans and pods")


def test_the_page_has_the_same_rows() -> None:
    """The table of the documentation has the same rows as this test."""
    page = PAGE.read_text()

    for (stages, action), outcomes in AGAIN.items():
        cells = " | ".join(one or "–" for one in outcomes)
        assert f"| {stages} | {action} | {cells} |" in page, (stages, action)
