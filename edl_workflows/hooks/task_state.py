"""The current states of task instances in Airflow, which `on_kill` reads before it cancels anything."""

from collections.abc import Iterable
from typing import Any

DELETED = "deleted"
"""Not a state of Airflow's: it has no such task instance any more, because the run or the DAG was deleted."""
ENDED_STATES = frozenset({"failed", "success", "skipped", "upstream_failed", "removed", DELETED})
"""States of a task instance that nobody continues. In any other state it was moved, cleared or lost its
worker: its next attempt continues with the same object."""

TaskStates = dict[str, dict[int, str | None]]
"""Run id → map index → state; None is the state of an instance that was cleared and that nobody took up yet.
A run that has no such task instances, or that is not there, is absent."""


def task_state(ti: Any) -> str | None:
    """The state that Airflow has of this task instance now; None if it was cleared and nobody took it up yet.

    Blocks; in a triggerer it must be called in a thread.

    Args:
        ti: a worker's or a triggerer's task instance.
    """
    index = -1 if ti.map_index is None else ti.map_index
    return task_states(ti.dag_id, ti.task_id, [ti.run_id]).get(ti.run_id, {}).get(index, DELETED)


def task_states(dag_id: str, task_id: str, run_ids: Iterable[str]) -> TaskStates:
    """The states of one task in some runs, by one request to Airflow's API server; blocks.

    A task reaches it through its supervisor, with the rights that every task has.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    answer = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=list(run_ids))
    return {run_id: _by_index(task_id, states) for run_id, states in answer.items()}


def run_state(dag_id: str, run_id: str) -> str:
    """The state of a run, or `DELETED`; blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if not RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id]):
        return DELETED
    state: Any = RuntimeTaskInstance.get_dagrun_state(dag_id=dag_id, run_id=run_id)
    return str(getattr(state, "value", state))  # its enumeration's text is not the value


def _by_index(task_id: str, states: dict[str, Any]) -> dict[int, str | None]:
    """Airflow names an instance by its task's id, and one of a mapped task by ``<task id>_<map index>``."""
    return {
        -1 if name == task_id else int(name.removeprefix(f"{task_id}_")): None
        if state is None
        else str(state)
        for name, state in states.items()
    }
