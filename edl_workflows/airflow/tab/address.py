"""The location of the tab *Elastic job* in Airflow's web interface."""

from urllib.parse import quote

PREFIX = "/edl-workflows"
"""Path of the plugin's endpoints below Airflow's base URL."""
TASK_ROUTE = "elastic-job"
RUN_ROUTE = "elastic-jobs"


def url_of_tab(base_url: str, dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str:
    """The URL of the tab on a task instance.

    Args:
        base_url: URL of Airflow's web interface.
        dag_id: the task instance's DAG.
        run_id: its run.
        task_id: its task.
        map_index: map index of a mapped task; None or -1 for other tasks.
    """
    path = f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}/tasks/{quote(task_id, safe='')}"
    mapped = f"/mapped/{map_index}" if map_index is not None and map_index >= 0 else ""
    return f"{base_url.rstrip('/')}/{path}{mapped}/plugin/{TASK_ROUTE}"
