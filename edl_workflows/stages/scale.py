"""Scale a running job: other counts or sizes of its roles. A change of parameter servers migrates them."""

from typing import Any

from pydantic import Field

from edl_workflows.jobs.elastic_job.model import ElasticJob
from edl_workflows.jobs.scale_plan.model import ReplicaResourceSpec, Role
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import plans
from edl_workflows.stages.goals import Handle
from edl_workflows.stages.identity import Identity
from edl_workflows.stages.requests import Stage


class ScaleRequest(plans.PlanRequest):
    """Wanted state.

    Attributes:
        replicas: by role: count, and the size of nodes made from now on.
    """

    replicas: dict[Role, ReplicaResourceSpec] = Field(min_length=1)


def begin(cluster: Cluster, request: ScaleRequest, identity: Identity) -> Handle:
    """Create or adopt the plan; errors as `plans.begin`."""

    def spec(job: ElasticJob) -> dict[str, Any]:
        plans.check_roles(job, request.replicas, "replicas")
        return {"replicaResourceSpecs": {role: wanted.to_dict() for role, wanted in request.replicas.items()}}

    return plans.begin(cluster, request, plans.Draft("scale", spec), identity)


SCALE = Stage("scale", ScaleRequest, begin)
