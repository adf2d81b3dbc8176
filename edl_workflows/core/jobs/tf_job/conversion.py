"""A TFJob in its other version, and as an ElasticJob. Pure. Fields that can't be converted
are reported, never dropped silently.
"""

from collections.abc import Mapping
from typing import Any

from edl_workflows.core.jobs.conversion import ConvertedJob, converted_manifest
from edl_workflows.core.jobs.kubeflow import conversion
from edl_workflows.core.jobs.kubeflow.model import Policies, ReplicaType
from edl_workflows.core.jobs.tf_job.model import KIND, TFJob, TFJobSpec, TFReplicaType
from edl_workflows.core.jobs.tf_job.pods import TENSORFLOW
from edl_workflows.core.kubernetes import names

V1, V1ALPHA2 = "kubeflow.org/v1", "kubeflow.org/v1alpha2"
_ROLES: dict[ReplicaType, str] = {
    TFReplicaType.CHIEF: names.CHIEF_TYPE,
    TFReplicaType.MASTER: names.CHIEF_TYPE,
    TFReplicaType.PS: names.PS_TYPE,
    TFReplicaType.WORKER: names.WORKER_TYPE,
    TFReplicaType.EVALUATOR: names.EVALUATOR_TYPE,
}


def to_v1(job: TFJob) -> ConvertedJob:
    """The job as ``kubeflow.org/v1``: policies in ``runPolicy``, types in v1's spelling."""
    spec = job.spec.to_dict()
    for name in [field.alias or name for name, field in Policies.model_fields.items()]:
        spec.pop(name, None)
    run_policy = spec.pop("runPolicy", {}) | job.spec.policies.to_dict()
    spec["tfReplicaSpecs"] = _by_type(spec)
    return ConvertedJob(
        converted_manifest(V1, KIND, job, spec | ({"runPolicy": run_policy} if run_policy else {}))
    )


def to_v1alpha2(job: TFJob) -> ConvertedJob:
    """The job as ``kubeflow.org/v1alpha2``: flat policies. Fields newer than that version are lost, with a
    note.
    """
    spec = job.spec.to_dict()
    run_policy = spec.pop("runPolicy", {})
    newer = {f"runPolicy.{name}": run_policy.get(name) for name in ("suspend", "managedBy")}
    newer |= {name: spec.pop(name, None) for name in ("successPolicy", "enableDynamicWorker")}
    notes = [f"spec.{path}: v1alpha2 has no such field" for path, value in newer.items() if value]
    spec["tfReplicaSpecs"] = _by_type(spec)
    return ConvertedJob(
        converted_manifest(V1ALPHA2, KIND, job, spec | job.spec.policies.to_dict()), tuple(notes)
    )


def to_elastic_job(job: TFJob) -> ConvertedJob:
    lost = ["successPolicy"] if job.spec.success_policy else []
    return conversion.to_elastic_job(job, TENSORFLOW.container, _ROLES, lost)


def _by_type(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {str(TFJobSpec.replica_type(key)): value for key, value in spec["tfReplicaSpecs"].items()}
