"""The current states of task instances in Airflow, which `on_kill` reads before it cancels anything."""

from collections.abc import Collection, Iterable
from typing import Any

DELETED = "deleted"
"""Not a state of Airflow: the task instance no longer exists, because its run or DAG was deleted."""
ENDED_STATES = frozenset({"failed", "success", "skipped", "upstream_failed", "removed", DELETED})
"""States of a task instance that will not continue. In any other state the instance runs, was moved or
cleared, or lost its worker, and its next attempt continues with the same object."""

TaskStates = dict[str, dict[int, str | None]]
"""Run id or task id → map index → state. The state is None if the instance was cleared and has not been
scheduled again. Runs that don't exist or have no such task instances are absent."""
LIVE_RUNS = frozenset({"queued", "running"})
"""States of a run whose tasks may still begin."""


def task_state(ti: Any) -> str | None:
    """The current state of this task instance in Airflow; None if it was cleared and has not been scheduled
    again.

    Blocks; in a triggerer it must be called in a thread.

    Args:
        ti: a worker's or a triggerer's task instance.
    """
    index = -1 if ti.map_index is None else ti.map_index
    return task_states(ti.dag_id, ti.task_id, [ti.run_id]).get(ti.run_id, {}).get(index, DELETED)


def task_states(dag_id: str, task_id: str, run_ids: Iterable[str]) -> TaskStates:
    """The states of one task in some runs, read with one request to Airflow's API server. Blocks.

    A task reaches the API server through its supervisor, with the rights that every task has.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    answer = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=list(run_ids))
    return {run_id: _by_index(task_id, states) for run_id, states in answer.items()}


def states_of_run(dag_id: str, run_id: str, task_ids: Collection[str]) -> TaskStates:
    """The states of all instances of some tasks of a run, by task id. Blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    answer = RuntimeTaskInstance.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
    states: TaskStates = {}
    for name, state in answer.items():
        task_id, _, index = name.rpartition("_")
        mapped = name not in task_ids and task_id in task_ids and index.isdecimal()
        instances = states.setdefault(task_id if mapped else name, {})
        instances[int(index) if mapped else -1] = None if state is None else str(state)
    return {task_id: instances for task_id, instances in states.items() if task_id in task_ids}


def run_state(dag_id: str, run_id: str) -> str:
    """The state of a run, or `DELETED`; blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if not RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id]):
        return DELETED
    state: Any = RuntimeTaskInstance.get_dagrun_state(dag_id=dag_id, run_id=run_id)
    return str(getattr(state, "value", state))  # str() of the enumeration is not its value


def _by_index(task_id: str, states: dict[str, Any]) -> dict[int, str | None]:
    """The states by map index. Airflow's keys are the task's id or, for a mapped task, ``<task id>_<map
    index>``."""
    return {
        -1 if name == task_id else int(name.removeprefix(f"{task_id}_")): None
        if state is None
        else str(state)
        for name, state in states.items()
    }
