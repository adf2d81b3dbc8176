"""Airflow operators: thin drivers of `edl_workflows.pipelines.stages`. Import as ``edl_workflows.operators``.

Each class is imported on first use, so that a DAG file loads only what it uses.
"""

from typing import TYPE_CHECKING, Any

from edl_workflows import import_on_use

if TYPE_CHECKING:
    from edl_workflows.operators.di_job import SubmitDIJobOperator
    from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
    from edl_workflows.operators.job import SubmitJobOperator
    from edl_workflows.operators.pytorch_job import SubmitPyTorchJobOperator
    from edl_workflows.operators.reaper import ReapOrphanedJobsOperator
    from edl_workflows.operators.stages import (
        ApplyPlanOperator,
        AutoscaleJobOperator,
        CancelJobOperator,
        CheckpointJobOperator,
        DeleteJobOperator,
        MigrateParameterServersOperator,
        PlanScaleOperator,
        ResumeJobOperator,
        ScaleJobOperator,
        SuspendJobOperator,
    )
    from edl_workflows.operators.tf_job import SubmitTFJobOperator
    from edl_workflows.operators.training_job import SubmitTrainingJobOperator
    from edl_workflows.operators.watcher import FailMarkedRunOperator

__all__ = [
    "ApplyPlanOperator",
    "AutoscaleJobOperator",
    "CancelJobOperator",
    "CheckpointJobOperator",
    "DeleteJobOperator",
    "FailMarkedRunOperator",
    "MigrateParameterServersOperator",
    "PlanScaleOperator",
    "ReapOrphanedJobsOperator",
    "ResumeJobOperator",
    "ScaleJobOperator",
    "SubmitDIJobOperator",
    "SubmitElasticJobOperator",
    "SubmitJobOperator",
    "SubmitPyTorchJobOperator",
    "SubmitTFJobOperator",
    "SubmitTrainingJobOperator",
    "SuspendJobOperator",
]

_MODULES = dict.fromkeys(__all__, "edl_workflows.operators.stages") | {
    "FailMarkedRunOperator": "edl_workflows.operators.watcher",
    "ReapOrphanedJobsOperator": "edl_workflows.operators.reaper",
    "SubmitDIJobOperator": "edl_workflows.operators.di_job",
    "SubmitElasticJobOperator": "edl_workflows.operators.elastic_job",
    "SubmitJobOperator": "edl_workflows.operators.job",
    "SubmitPyTorchJobOperator": "edl_workflows.operators.pytorch_job",
    "SubmitTFJobOperator": "edl_workflows.operators.tf_job",
    "SubmitTrainingJobOperator": "edl_workflows.operators.training_job",
}

# In a development checkout, this folder is also on sys.path. Classes imported from there would be different
# objects from those that Airflow uses.
if __name__ != "edl_workflows.operators":
    raise ImportError("import edl_workflows.operators, not operators")


def __getattr__(name: str) -> Any:
    return import_on_use(__name__, _MODULES, name)
