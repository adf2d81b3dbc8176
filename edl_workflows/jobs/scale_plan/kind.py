"""ScalePlan's row of the registry."""

from edl_workflows.jobs.elastic_job import sources
from edl_workflows.jobs.kind import Kind
from edl_workflows.jobs.scale_plan.crd import OPTIONS
from edl_workflows.jobs.scale_plan.model import ScalePlan
from edl_workflows.jobs.scale_plan.reconcile import reconcile

SCALE_PLAN = Kind(
    source=sources.SCALE_PLANS,
    model=ScalePlan,
    reconcile=reconcile,
    observes=(sources.ELASTIC_JOBS, sources.PODS, sources.SCALE_PLANS),
    crd=OPTIONS,
)
