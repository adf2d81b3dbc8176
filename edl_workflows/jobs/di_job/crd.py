"""How DIJobs look in ``kubectl``: upstream's columns, and why a job is where it is."""

from edl_workflows.jobs.schema import Column, CrdOptions

OPTIONS = CrdOptions(
    singular="dijob",
    short_names=("dijob",),
    columns=(
        Column("Phase", "string", ".status.phase"),
        Column("ReadyReplicas", "integer", ".status.readyReplicas"),
        Column("Replicas", "integer", ".status.replicas"),
        Column("Restarts", "integer", ".status.restarts"),
        Column("Reschedules", "integer", ".status.reschedules"),
        Column("Reason", "string", ".status.reason", priority=1),
        Column("Message", "string", ".status.message", priority=1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
)
