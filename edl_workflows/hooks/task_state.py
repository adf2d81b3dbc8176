"""Whether a task instance was really killed: what `on_kill` asks before it cancels anything, in workers and triggerers."""

from typing import Any

ENDED_STATES = frozenset({"failed", "success", "skipped", "upstream_failed", "removed"})
"""Of a task instance that nobody goes on with. Any other means that it was moved, cleared or lost its worker: its next
attempt goes on with the same object."""


def task_state(ti: Any) -> str | None:
    """The state that Airflow has of this task instance now; None if it was cleared and nobody took it up yet.

    Blocks; in a triggerer it must be called in a thread.

    Args:
        ti: a worker's or a triggerer's task instance.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, map_index=ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
    )
    state = next(iter(states.get(ti.run_id, {}).values()), None)
    return None if state is None else str(state)
