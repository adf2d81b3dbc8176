"""Which states of a run show that somebody marked it failed."""

from typing import Any

import pytest

from edl_workflows.operators.watcher import abandoned_failures

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

FOLLOWERS = {"submit": ["wait"], "wait": ["trained"], "trained": ["evaluate"], "evaluate": [], "alert": []}
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

    assert abandoned_failures(FOLLOWERS, {task: {-1: state} for task, state in states.items()}) == marked


@pytest.mark.parametrize(("third", "marked"), [("skipped", ["trained"]), ("upstream_failed", [])])
def test_instances_of_a_mapped_group_are_judged_by_their_own_followers(third: str, marked: list[str]) -> None:
    """What follows another instance says nothing."""
    states: dict[str, dict[int, str | None]] = {
        "trained": {0: "success", 1: "failed", 2: "success"},
        "evaluate": {0: "success", 1: third, 2: "skipped"},
    }

    assert abandoned_failures({"trained": ["evaluate"]}, states) == marked


def test_a_mapped_task_before_one_task() -> None:
    """All instances are before the one."""
    assert abandoned_failures(
        {"trained": ["judge"]}, {"trained": {0: "success", 1: "failed"}, "judge": {-1: "skipped"}}
    ) == ["trained"]
