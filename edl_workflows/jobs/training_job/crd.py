"""How TrainingJobs look in ``kubectl``."""

from edl_workflows.jobs.schema import Column, CrdOptions

_TRAINER = ".status.replicaStatuses.trainer"

OPTIONS = CrdOptions(
    singular="trainingjob",
    short_names=("tj",),
    columns=(
        Column("Phase", "string", ".status.phase"),
        Column("Wanted", "integer", ".status.parallelism"),
        Column("Trainers", "integer", f"{_TRAINER}.active"),
        Column("Pservers", "integer", ".status.replicaStatuses.pserver.active"),
        Column("Reason", "string", ".status.reason", priority=1),
        Column("Message", "string", ".status.message", priority=1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
    scale=(".spec.trainer.parallelism", f"{_TRAINER}.active", f"{_TRAINER}.labelSelector"),
)
