"""PyTorchJob's `Kind` in the registry: what an autoscaler may change, and how a job becomes an ElasticJob."""

from edl_workflows.core.jobs.autoscaling import ElasticRole
from edl_workflows.core.jobs.conversion import ConvertedJob
from edl_workflows.core.jobs.kubeflow import conversion
from edl_workflows.core.jobs.kubeflow.kind import kubeflow_crd, kubeflow_kind
from edl_workflows.core.jobs.kubeflow.model import ReplicaType
from edl_workflows.core.jobs.pytorch_job.model import (
    PYTORCH_JOBS,
    PyTorchJob,
    PyTorchJobSpec,
    TorchReplicaType,
)
from edl_workflows.core.jobs.pytorch_job.pods import PYTORCH
from edl_workflows.core.kubernetes import api, demand, names
from edl_workflows.core.schemas.definition import CrdColumn

_ROLES: dict[ReplicaType, str] = {
    TorchReplicaType.MASTER: names.CHIEF_TYPE,
    TorchReplicaType.WORKER: names.WORKER_TYPE,
}


def elastic_role(job: PyTorchJob) -> ElasticRole | None:
    """The job's workers, within ``elasticPolicy``'s bounds; None without such a policy, and also once a
    worker has succeeded, because the job is then ending.
    """
    bounds, worker = job.spec.worker_bounds, job.spec.replicas.get(TorchReplicaType.WORKER)
    if bounds is None or worker is None or job.is_ending:
        return None
    pod = worker.template["spec"]
    role = TorchReplicaType.WORKER.slug
    return ElasticRole(role, *bounds, worker.replicas, demand.pod_requests(pod), pod, bounded=True)


def to_elastic_job(job: PyTorchJob) -> ConvertedJob:
    """The job as an ElasticJob: master and workers become workers, and ``elasticPolicy`` bounds their
    number."""
    policy, bounds = job.spec.elastic_policy, job.spec.worker_bounds
    lost = [] if job.spec.nproc_per_node is None else ["nprocPerNode"]
    rendezvous = {}
    if policy is not None and bounds is not None:
        kept = {"minReplicas", "maxReplicas"}
        lost += [
            f"elasticPolicy.{name}" for name, value in policy.to_dict().items() if value and name not in kept
        ]
        masters = job.spec.total_replicas - job.spec.replicas[TorchReplicaType.WORKER].replicas
        rendezvous = {"rendezvous": {"minNodes": bounds[0] + masters, "maxNodes": bounds[1] + masters}}
    return conversion.to_elastic_job(job, PYTORCH.container, _ROLES, lost, **rendezvous)


PYTORCH_JOB = kubeflow_kind(
    PYTORCH_JOBS,
    PyTorchJob,
    PYTORCH,
    kubeflow_crd(
        PYTORCH_JOBS,
        PyTorchJobSpec.specs_key(),
        "ptj",
        CrdColumn("Master", "integer", ".status.replicaStatuses.Master.active"),
    ),
    elastic=elastic_role,
    conversions=((api.ELASTIC_JOBS.kind, to_elastic_job),),
)
