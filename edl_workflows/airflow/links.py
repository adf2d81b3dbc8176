"""The link from a task to its job or plan."""

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from edl_workflows.airflow.hooks.airflow_versions import conf
from edl_workflows.airflow.tab.address import url_of_tab

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class ElasticJobLink(BaseOperatorLink):
    """A link to the object in the connection's dashboard (``edl_dashboard_url``) or, without a dashboard, to
    the task's tab *Elastic job*. There is no link if the connection names no dashboard and Airflow has no
    tabs (before 3.1) or no ``[api] base_url``.

    Airflow asks for the link in the worker whenever the task ends or is deferred. By then the operator has
    the dashboard's URL.
    """

    name = "Elastic job"

    def get_link(self, operator: Any, *, ti_key: "TaskInstanceKey") -> str:
        """An absolute URL, or "" so that Airflow shows no link."""
        return str(getattr(operator, "link", "")) or _url_of_tab(ti_key)


def _url_of_tab(ti_key: "TaskInstanceKey") -> str:
    base_url = str(conf.get("api", "base_url", fallback="") or "")
    if not base_url.startswith(("https://", "http://")) or not _has_tabs():
        return ""
    return url_of_tab(base_url, ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)


def _has_tabs() -> bool:
    from airflow.plugins_manager import AirflowPlugin

    return hasattr(AirflowPlugin, "react_apps")  # since 3.1
