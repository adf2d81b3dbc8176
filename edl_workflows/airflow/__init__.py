"""Airflow: the task group, the decorator, the hook, the triggers and the tab. Thin drivers of the stages.

The names below are the public API. They are imported on first use, so that a DAG file loads only what it
uses. The operators and sensors are `edl_workflows.operators` and `edl_workflows.sensors`.
"""

from typing import TYPE_CHECKING, Any

from edl_workflows import import_on_use

if TYPE_CHECKING:
    from edl_workflows.airflow.decorators import elastic_task
    from edl_workflows.airflow.hooks.elastic_job import ConnectionSettings, ElasticJobHook
    from edl_workflows.airflow.task_groups import checkpoint_migrate_restart, elastic_job

__all__ = [
    "ConnectionSettings",
    "ElasticJobHook",
    "checkpoint_migrate_restart",
    "elastic_job",
    "elastic_task",
]

_MODULES = {
    "ConnectionSettings": "edl_workflows.airflow.hooks.elastic_job",
    "ElasticJobHook": "edl_workflows.airflow.hooks.elastic_job",
    "checkpoint_migrate_restart": "edl_workflows.airflow.task_groups",
    "elastic_job": "edl_workflows.airflow.task_groups",
    "elastic_task": "edl_workflows.airflow.decorators",
}


def __getattr__(name: str) -> Any:
    return import_on_use(__name__, _MODULES, name)
