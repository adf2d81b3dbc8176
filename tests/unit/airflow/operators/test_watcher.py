"""Which states of a run show that somebody marked it failed."""

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from edl_workflows.airflow.hooks.airflow_versions import AirflowFailException
from edl_workflows.airflow.hooks.task_state import TaskStates
from edl_workflows.operators.watcher import FailMarkedRunOperator, TaskNode, abandoned_failures

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")


def nodes(rule: str = "all_success", **upstream: str) -> dict[str, TaskNode]:
    """Tasks by what is before them. One whose name begins with ``branch`` is a branch, and the rule is that
    of the task ``join``."""
    return {
        name: TaskNode(
            frozenset(before.split()),
            rule if name == "join" else "all_success",
            skips=name.startswith("branch"),
        )
        for name, before in upstream.items()
    }


CHAIN = nodes(submit="", wait="submit", trained="wait", evaluate="trained", alert="")
ROWS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing failed": ({"wait": "success", "trained": "success", "evaluate": "success"}, []),
    "marked failed during a wait": (
        {"wait": "failed", "trained": "skipped", "evaluate": "skipped"}, ["wait"]
    ),
    "marked failed at the job's end": (
        {"wait": "success", "trained": "failed", "evaluate": "skipped"}, ["trained"]
    ),
    "marked failed before the job": ({"submit": "failed", "wait": "skipped"}, ["submit"]),
    "marked succeeded": ({"wait": "success", "trained": "skipped", "evaluate": "skipped"}, []),
    "failed by itself": ({"wait": "failed", "trained": "upstream_failed", "evaluate": "upstream_failed"}, []),
    "failed by itself, and handled": ({"wait": "failed", "trained": "success", "evaluate": "success"}, []),
    "the last task failed, which Airflow sees": ({"trained": "success", "evaluate": "failed"}, []),
    "failed, and the task behind it has not been decided": ({"wait": "failed", "trained": None}, []),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_a_failure_that_nothing_followed_was_marked(row: str) -> None:
    """Only a mark leaves a failed task whose followers were all skipped; any other failure is left to
    Airflow's own rules."""
    states, marked = ROWS[row]

    assert abandoned_failures(CHAIN, {task: {-1: state} for task, state in states.items()}) == marked


@pytest.mark.parametrize(("third", "marked"), [("skipped", ["trained"]), ("upstream_failed", [])])
def test_instances_of_a_mapped_group_are_judged_by_their_own_followers(third: str, marked: list[str]) -> None:
    """What follows another instance says nothing."""
    states: dict[str, dict[int, str | None]] = {
        "trained": {0: "success", 1: "failed", 2: "success"},
        "evaluate": {0: "success", 1: third, 2: "skipped"},
    }

    assert abandoned_failures(nodes(trained="", evaluate="trained"), states) == marked


def test_a_mapped_task_before_one_task() -> None:
    """All instances are before the one."""
    assert abandoned_failures(
        nodes(trained="", judge="trained"), {"trained": {0: "success", 1: "failed"}, "judge": {-1: "skipped"}}
    ) == ["trained"]


SKIPPED = {"check": "failed", "join": "skipped"}
SHAPES: dict[str, tuple[dict[str, TaskNode], dict[str, Any], bool]] = {
    "a branch went elsewhere": (
        nodes(check="", branch="", join="check branch", other="branch"),
        {"branch": "success", "other": "success"}, False,
    ),
    "a short circuit far above": (
        nodes("none_failed", check="", branch="", step="branch", join="check step"),
        {"branch": "success", "step": "skipped"}, False,
    ),
    "a branch that has not decided": (
        nodes(check="", branch="", join="check branch"), {"branch": "failed"}, True
    ),
    "a branch before both": (
        nodes(branch="", check="branch", join="check"), {"branch": "success"}, True
    ),
    "another upstream task was skipped": (
        nodes(check="", other="", join="check other"), {"other": "skipped"}, False
    ),
    "which the rule accepts": (
        nodes("none_failed", check="", other="", join="check other"), {"other": "skipped"}, True
    ),
    "all_failed, and one succeeded": (
        nodes("all_failed", check="", other="", join="check other"), {"other": "success"}, False
    ),
    "all_failed, and all failed": (nodes("all_failed", check="", join="check"), {}, True),
    "all_skipped": (nodes("all_skipped", check="", join="check"), {}, False),
    "none_skipped, and one was": (
        nodes("none_skipped", check="", other="", join="check other"), {"other": "skipped"}, False
    ),
    "another follower shows the mark": (
        nodes(check="", branch="", join="check branch", report="check"),
        {"branch": "success", "report": "skipped"}, True,
    ),
    "another follower ran": (
        nodes(check="", join="check", report="check"), {"report": "success"}, False
    ),
}  # fmt: skip
"""Tasks, the states of those other than `SKIPPED`, and whether the run was marked failed."""


@pytest.mark.parametrize("shape", SHAPES)
def test_what_airflow_skips_itself_shows_no_mark(shape: str) -> None:
    """A task that a branch, a short circuit or its rule skipped does not fail a run that Airflow lets
    succeed."""
    tasks, more, marked = SHAPES[shape]
    states: TaskStates = {task: {-1: state} for task, state in (SKIPPED | more).items()}

    assert ("check" in abandoned_failures(tasks, states)) is marked


@pytest.mark.parametrize(("rule", "marked"), [("all_success", False), ("none_failed", True)])
def test_the_watcher_reads_rules_and_branches_of_its_dag(
    rule: str, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules are those of Airflow's operators."""
    states = {"check": "failed", "other": "skipped", "join": "skipped"}
    monkeypatch.setattr(
        "edl_workflows.operators.watcher.states_of_run",
        lambda _dag, _run, _tasks: {task: {-1: state} for task, state in states.items()},
    )
    with DAG("watched", schedule=None):
        join = EmptyOperator(task_id="join", trigger_rule=rule)
        [EmptyOperator(task_id="check"), EmptyOperator(task_id="other")] >> join
        watcher = FailMarkedRunOperator(task_id="watcher").as_teardown()
    context: Any = {"ti": SimpleNamespace(dag_id="watched", run_id="run")}

    with pytest.raises(AirflowFailException, match="check failed") if marked else nullcontext():
        watcher.execute(context)


def test_the_watcher_is_retried_by_default() -> None:
    """An error of Airflow's API server, or a lost worker, does not fail a run that has succeeded."""
    with DAG("watched", schedule=None):
        watcher = FailMarkedRunOperator(task_id="watcher")

    assert (watcher.retries, watcher.retry_delay) == (2, timedelta(seconds=10))
