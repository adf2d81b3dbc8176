"""The pure state machine of a ScalePlan."""

from edl_workflows.jobs.actions import Actions, Observed
from edl_workflows.jobs.scale_plan.model import ScalePlan


def reconcile(resource: ScalePlan, observed: Observed) -> Actions:
    """What to do about it now."""
    return Actions()
