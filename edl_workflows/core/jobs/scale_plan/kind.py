"""ScalePlan's `Kind` in the registry."""

from edl_workflows.core.jobs.elastic_job import kind as elastic_job
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.jobs.scale_plan.reconcile import reconcile
from edl_workflows.core.schemas.definition import CrdColumn, CrdOptions

_CRD = CrdOptions(
    singular="scaleplan",
    short_names=("sp",),
    columns=(
        CrdColumn("Job", "string", ".spec.ownerJob"),
        CrdColumn("Phase", "string", ".status.phase"),
        CrdColumn("Stall", "number", ".status.stallSeconds"),
        CrdColumn("Reason", "string", ".status.reason", priority=1),
        CrdColumn("Message", "string", ".status.message", priority=1),
        CrdColumn("Age", "date", ".metadata.creationTimestamp"),
    ),
)


SCALE_PLAN = Kind(
    source=elastic_job.SCALE_PLANS,
    model=ScalePlan,
    reconcile=reconcile,
    observes=(elastic_job.ELASTIC_JOBS, elastic_job.PODS, elastic_job.SCALE_PLANS),
    crd=_CRD,
)
