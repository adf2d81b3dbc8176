"""Carry out what the stage ``plan-scale`` told: counts, sizes and migrations in one ScalePlan, with the reasons."""

from typing import Any

from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.jobs.elastic_job.model import ElasticJob
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import ownership, plans
from edl_workflows.stages.goals import ExistsGoal, Handle
from edl_workflows.stages.identity import Identity
from edl_workflows.stages.planned import PlannedChange
from edl_workflows.stages.requests import Stage


class ApplyPlanRequest(plans.PlanRequest):
    """Which plan.

    Attributes:
        plan: as the stage ``plan-scale`` gave it, or as somebody edited it since; one that changes nothing is done at once.
    """

    plan: PlannedChange


def begin(cluster: Cluster, request: ApplyPlanRequest, identity: Identity) -> Handle:
    """Create or adopt the ScalePlan; errors as `plans.begin`."""
    if not request.plan.changes:
        namespace = request.namespace or cluster.namespace
        job = client.get(cluster, ownership.resource_of(ELASTIC_JOB), request.job, namespace)
        uid = job["metadata"]["uid"]
        return Handle(kind=ELASTIC_JOB, namespace=namespace, name=request.job, goal=ExistsGoal(), uid=uid)

    def spec(job: ElasticJob) -> dict[str, Any]:
        plans.check_roles(job, request.plan.replicas, "plan.replicas")
        return dict(request.plan.spec())

    return plans.begin(cluster, request, plans.Draft("apply", spec), identity)


APPLY_PLAN = Stage("apply-plan", ApplyPlanRequest, begin)
