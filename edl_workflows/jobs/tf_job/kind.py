"""TFJob's row of the registry."""

from edl_workflows.jobs import api
from edl_workflows.jobs.kubeflow.kind import kubeflow_kind
from edl_workflows.jobs.schema import CrdColumn, CrdOptions
from edl_workflows.jobs.tf_job.model import VERSIONS, TFJob
from edl_workflows.jobs.tf_job.pods import TENSORFLOW

_WORKER = ".status.replicaStatuses.Worker"

TF_JOB = kubeflow_kind(
    api.TF_JOBS,
    TFJob,
    TENSORFLOW,
    CrdOptions(
        singular="tfjob",
        short_names=("tfj",),
        columns=(
            CrdColumn("Phase", "string", ".status.phase"),
            CrdColumn("Workers", "integer", f"{_WORKER}.active"),
            CrdColumn("PS", "integer", ".status.replicaStatuses.PS.active"),
            CrdColumn("Reason", "string", ".status.reason", priority=1),
            CrdColumn("Message", "string", ".status.message", priority=1),
            CrdColumn("Age", "date", ".metadata.creationTimestamp"),
        ),
        scale=(".spec.tfReplicaSpecs.Worker.replicas", f"{_WORKER}.active", f"{_WORKER}.labelSelector"),
        also_served=VERSIONS[1:],
    ),
)
