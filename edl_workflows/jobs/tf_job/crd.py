"""How TFJobs look in ``kubectl``."""

from edl_workflows.jobs.schema import Column, CrdOptions
from edl_workflows.jobs.tf_job.types import VERSIONS

_WORKER = ".status.replicaStatuses.Worker"

OPTIONS = CrdOptions(
    singular="tfjob",
    short_names=("tfj",),
    columns=(
        Column("Phase", "string", ".status.phase"),
        Column("Workers", "integer", f"{_WORKER}.active"),
        Column("PS", "integer", ".status.replicaStatuses.PS.active"),
        Column("Reason", "string", ".status.reason", priority=1),
        Column("Message", "string", ".status.message", priority=1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
    scale=(".spec.tfReplicaSpecs.Worker.replicas", f"{_WORKER}.active", f"{_WORKER}.labelSelector"),
    also_served=VERSIONS[1:],
)
