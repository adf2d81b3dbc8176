"""How ScalePlans look in ``kubectl``."""

from edl_workflows.jobs.schema import Column, CrdOptions

OPTIONS = CrdOptions(
    singular="scaleplan",
    short_names=("sp",),
    columns=(
        Column("Job", "string", ".spec.ownerJob"),
        Column("Phase", "string", ".status.phase"),
        Column("Stall", "number", ".status.stallSeconds"),
        Column("Reason", "string", ".status.reason", priority=1),
        Column("Message", "string", ".status.message", priority=1),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
)
