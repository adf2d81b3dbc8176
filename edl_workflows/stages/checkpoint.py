"""Ask a running job for a checkpoint now, and wait until it is complete."""

from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import plans
from edl_workflows.stages.goals import Handle
from edl_workflows.stages.identity import Identity
from edl_workflows.stages.requests import Stage


class CheckpointRequest(plans.PlanRequest):
    """Which job."""


def begin(cluster: Cluster, request: CheckpointRequest, identity: Identity) -> Handle:
    """Create or adopt the plan; errors as `plans.begin`."""
    draft = plans.Draft("checkpoint", lambda _job: {"checkpoint": True}, pins=False)
    return plans.begin(cluster, request, draft, identity)


CHECKPOINT = Stage("checkpoint", CheckpointRequest, begin)
