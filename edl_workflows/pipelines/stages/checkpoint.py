"""Ask a running job for a checkpoint now, and wait until it is complete."""

from edl_workflows.pipelines.stages import scale_plans
from edl_workflows.pipelines.stages.description import StageSpec
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster


class CheckpointRequest(scale_plans.ChangeRequest):
    """The job to checkpoint."""


def begin_checkpoint(cluster: Cluster, request: CheckpointRequest, identity: StageIdentity) -> Handle:
    """Create or adopt the ScalePlan; raises as `scale_plans.create_plan`."""
    draft = scale_plans.ChangeDraft("checkpoint", lambda _job: {"checkpoint": True}, pins=False)
    return scale_plans.create_plan(cluster, request, draft, identity)


CHECKPOINT = StageSpec(
    "checkpoint",
    "Ask a running job for a checkpoint now.",
    CheckpointRequest,
    begin_checkpoint,
    operator="CheckpointJobOperator",
)
