"""How ElasticJobs look in ``kubectl``."""

from edl_workflows.jobs.schema import Column, CrdOptions

_WORKER = ".status.replicaStatuses.worker"

OPTIONS = CrdOptions(
    singular="elasticjob",
    short_names=("ej",),
    columns=(
        Column("Phase", "string", ".status.phase"),
        Column("Step", "integer", ".status.progress.step"),
        Column("Workers", "integer", f"{_WORKER}.active"),
        Column("PS", "integer", ".status.replicaStatuses.ps.active"),
        Column("Reason", "string", ".status.reason", priority=1),
        Column("Message", "string", ".status.message", priority=1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
    scale=(".spec.replicaSpecs.worker.replicas", f"{_WORKER}.active", f"{_WORKER}.labelSelector"),
)
