"""The link from a task to its job or plan."""

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class ElasticJobLink(BaseOperatorLink):
    """The object in the dashboard that the connection names (``edl_dashboard_url``); without one there is no
    link.

    Airflow asks for it in the worker after each leg of the task, a deferral included: the operator has it by
    then.
    """

    name = "Elastic job"

    def get_link(self, operator: Any, *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002 - the interface
        """The URL from when the stage began; "" for no link: Airflow's page then shows none."""
        return str(getattr(operator, "link", ""))
