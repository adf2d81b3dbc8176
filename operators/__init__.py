"""Airflow operators: thin drivers of `edl_workflows.pipelines.stages`. Import as ``edl_workflows.operators``.

Each class is imported on first use, so that a DAG file loads only what it uses.
"""

from typing import TYPE_CHECKING, Any

from edl_workflows import import_on_use

if TYPE_CHECKING:
    from edl_workflows.operators.di_job import SubmitDIJobOperator
    from edl_workflows.operators.elastic_job import (
        AutoscaleJobOperator,
        CancelJobOperator,
        DeleteElasticJobOperator,
        ResumeElasticJobOperator,
        SubmitElasticJobOperator,
        SuspendElasticJobOperator,
    )
    from edl_workflows.operators.job import SubmitJobOperator
    from edl_workflows.operators.pytorch_job import SubmitPyTorchJobOperator
    from edl_workflows.operators.reaper import ReapOrphanedJobsOperator
    from edl_workflows.operators.scale_plan import (
        ApplyPlanOperator,
        CheckpointElasticJobOperator,
        MigrateParameterServersOperator,
        PlanScaleOperator,
        ScaleElasticJobOperator,
    )
    from edl_workflows.operators.tf_job import SubmitTFJobOperator
    from edl_workflows.operators.training_job import SubmitTrainingJobOperator

__all__ = [
    "ApplyPlanOperator",
    "AutoscaleJobOperator",
    "CancelJobOperator",
    "CheckpointElasticJobOperator",
    "DeleteElasticJobOperator",
    "MigrateParameterServersOperator",
    "PlanScaleOperator",
    "ReapOrphanedJobsOperator",
    "ResumeElasticJobOperator",
    "ScaleElasticJobOperator",
    "SubmitDIJobOperator",
    "SubmitElasticJobOperator",
    "SubmitJobOperator",
    "SubmitPyTorchJobOperator",
    "SubmitTFJobOperator",
    "SubmitTrainingJobOperator",
    "SuspendElasticJobOperator",
]

_MODULES = {
    "ApplyPlanOperator": "edl_workflows.operators.scale_plan",
    "AutoscaleJobOperator": "edl_workflows.operators.elastic_job",
    "CancelJobOperator": "edl_workflows.operators.elastic_job",
    "CheckpointElasticJobOperator": "edl_workflows.operators.scale_plan",
    "DeleteElasticJobOperator": "edl_workflows.operators.elastic_job",
    "MigrateParameterServersOperator": "edl_workflows.operators.scale_plan",
    "PlanScaleOperator": "edl_workflows.operators.scale_plan",
    "ReapOrphanedJobsOperator": "edl_workflows.operators.reaper",
    "ResumeElasticJobOperator": "edl_workflows.operators.elastic_job",
    "ScaleElasticJobOperator": "edl_workflows.operators.scale_plan",
    "SubmitDIJobOperator": "edl_workflows.operators.di_job",
    "SubmitElasticJobOperator": "edl_workflows.operators.elastic_job",
    "SubmitJobOperator": "edl_workflows.operators.job",
    "SubmitPyTorchJobOperator": "edl_workflows.operators.pytorch_job",
    "SubmitTFJobOperator": "edl_workflows.operators.tf_job",
    "SubmitTrainingJobOperator": "edl_workflows.operators.training_job",
    "SuspendElasticJobOperator": "edl_workflows.operators.elastic_job",
}

# In a development checkout, this folder is also on sys.path. Classes imported from there would be different
# objects from those that Airflow uses.
if __name__ != "edl_workflows.operators":
    raise ImportError("import edl_workflows.operators, not operators")


def __getattr__(name: str) -> Any:
    return import_on_use(__name__, _MODULES, name)
