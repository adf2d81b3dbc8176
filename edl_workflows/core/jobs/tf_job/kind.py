"""TFJob's `Kind` in the registry."""

from edl_workflows.core.jobs.kubeflow.kind import kubeflow_crd, kubeflow_kind
from edl_workflows.core.jobs.tf_job import conversion
from edl_workflows.core.jobs.tf_job.model import VERSIONS, TFJob, TFJobSpec
from edl_workflows.core.jobs.tf_job.pods import TENSORFLOW
from edl_workflows.core.kubernetes import api
from edl_workflows.core.schemas.definition import CrdColumn

TF_JOB = kubeflow_kind(
    api.TF_JOBS,
    TFJob,
    TENSORFLOW,
    kubeflow_crd(
        api.TF_JOBS,
        TFJobSpec.specs_key(),
        "tfj",
        CrdColumn("PS", "integer", ".status.replicaStatuses.PS.active"),
        also_served=VERSIONS[1:],
    ),
    conversions=(
        (api.ELASTIC_JOBS.kind, conversion.to_elastic_job),
        (conversion.V1, conversion.to_v1),
        (conversion.V1ALPHA2, conversion.to_v1alpha2),
    ),
)
