"""An auth manager whose users have rights on single DAGs, which Airflow's simple one does not know."""

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class DagRightsAuthManager(SimpleAuthManager):
    """A viewer whose name begins with a DAG's id and a colon has the viewer's rights on that DAG only. One
    called ``nologs`` may not read the logs of tasks."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **request: Any) -> bool:
        """What the role allows, on the DAG that the user's name names, if it names one."""
        dag_id, _, limited = user.get_name().partition(":")
        if limited and (details is None or details.id != dag_id):
            return False
        if user.get_name() == "nologs" and request.get("access_entity") is DagAccessEntity.TASK_LOGS:
            return False
        return bool(super().is_authorized_dag(user=user, details=details, **request))
