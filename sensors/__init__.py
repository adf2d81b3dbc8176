"""Airflow sensors: thin drivers of `edl_workflows.pipelines.stages`. Import as ``edl_workflows.sensors``.

Each class is imported on first use, so that a DAG file loads only what it uses.
"""

from typing import TYPE_CHECKING, Any

from edl_workflows import import_on_use

if TYPE_CHECKING:
    from edl_workflows.sensors.elastic_job import ElasticJobSensor, ScalePlanSensor
    from edl_workflows.sensors.job import JobSensor

__all__ = ["ElasticJobSensor", "JobSensor", "ScalePlanSensor"]

_MODULES = {
    "ElasticJobSensor": "edl_workflows.sensors.elastic_job",
    "JobSensor": "edl_workflows.sensors.job",
    "ScalePlanSensor": "edl_workflows.sensors.elastic_job",
}

# In a development checkout, this folder is also on sys.path. Classes imported from there would be different
# objects from those that Airflow uses.
if __name__ != "edl_workflows.sensors":
    raise ImportError("import edl_workflows.sensors, not sensors")


def __getattr__(name: str) -> Any:
    return import_on_use(__name__, _MODULES, name)
