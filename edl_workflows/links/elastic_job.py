"""The link from a task to its job or plan."""

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class ElasticJobLink(BaseOperatorLink):
    """The dashboard that the connection names, else the command that shows the object.

    Airflow asks for it in the worker after each leg of the task, a deferral included: the operator has it by
    then.
    """

    name = "Elastic job"

    def get_link(self, operator: Any, *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002 - the interface
        """What the operator worked out when its stage began."""
        return str(getattr(operator, "link", ""))
