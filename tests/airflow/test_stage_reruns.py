"""What each task comes to when it is retried, cleared or marked, with its job in each state: the operators
and the trigger themselves, against a real API server."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.airflow import triggers
from edl_workflows.airflow.hooks import kills
from edl_workflows.airflow.hooks.airflow_versions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from edl_workflows.airflow.hooks.task_state import DELETED
from edl_workflows.operators.base import StageTask
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, SCALE_PLANS
from tests.airflow.support import IN_AIRFLOW, create_ps_pod, elastic_job, eventually, jobs, plans, pods
from tests.airflow.test_deferral import Store, TaskInstance, context
from tests.cases.stages import REPLACED, SKIPPED, STAGE_CASES, SUCCEEDS, UNREACHABLE, WAITS

pytestmark = [*IN_AIRFLOW, pytest.mark.usefixtures("connection")]

RUNNING, SUCCEEDED, FAILED, GONE = STATES = ("running", "succeeded", "failed", "gone")
TASKS = {task.name: task for cases in STAGE_CASES.values() for task in cases.tasks}
WAITING = [cases.tasks[0].name for cases in STAGE_CASES.values() if cases.tasks and cases.tasks[0].retried]
"""A task of each stage whose tasks wait."""


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
    task = TASKS[stage].make(task_id="task", deferrable=True, retries=1)
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
        reached = {**status_of(RUNNING, 200), "phase": TASKS[stage].goal, "autoscaling": planned}
        client.patch_status(cluster, ELASTIC_JOBS, "mnist", reached)


def bring_into(cluster: Cluster, state: str) -> None:
    """Bring the job into a state."""
    if state == GONE:
        if jobs(cluster):
            client.delete(cluster, ELASTIC_JOBS, "mnist")
        eventually(lambda: not jobs(cluster), "the job's deletion")
    elif jobs(cluster)["mnist"].get("status", {}).get("phase") not in ("Succeeded", "Failed"):
        client.patch_status(cluster, ELASTIC_JOBS, "mnist", status_of(state))


PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-dag.md"
ROWS = [
    pytest.param(task.name, action, state, outcome, id=f"{task.name} {action}, job {state}")
    for task in TASKS.values()
    for action, outcomes in task.reruns.items()
    for state, outcome in zip(STATES, outcomes, strict=True)
    if outcome != UNREACHABLE
]


def test_every_stage_has_a_task() -> None:
    """The cases of each stage that tasks carry out have a task of it, and say what becomes of the task."""
    for name, cases in STAGE_CASES.items():
        assert bool(cases.tasks) is (name not in {"wait-plan", "collect"}), (
            f"{name} needs a task in its cases"
        )
        for task in cases.tasks:
            assert task.make(task_id="task").stage_name == name
            assert task.reruns


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
@pytest.mark.parametrize("stage", WAITING)
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
        monkeypatch.setattr(kills, "task_state", lambda _ti: MARKS[mark])
        monkeypatch.setattr(kills, "run_state", lambda _dag_id, _run_id: "running")
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
    task = TASKS[stage].make(task_id="task", deferrable=True)
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
    """The table of the documentation has the same rows as the cases."""
    rows = re.findall(r"^\| ([a-z, ]+) \| (retried|cleared) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    documented = {
        (name, action): tuple(cells.split(" | "))
        for names, action, cells in rows
        for name in names.split(", ")
    }

    assert documented == {
        (task.name, action): outcomes for task in TASKS.values() for action, outcomes in task.reruns.items()
    }, f"edit the table of repeated tasks in {PAGE.name}, or the stage's entry in tests/cases/stages.py"
