"""Carry out what the stage ``plan-scale`` told: counts, sizes and migrations in one ScalePlan, with the reasons."""

from typing import Any

from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.jobs.elastic_job.model import ElasticJob
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import ownership, scale_plans
from edl_workflows.stages.description import StageSpec
from edl_workflows.stages.goals import ExistsGoal, Handle
from edl_workflows.stages.identity import StageIdentity
from edl_workflows.stages.planned_change import PlannedChange


class ApplyPlanRequest(scale_plans.PlanRequest):
    """Which plan.

    Attributes:
        plan: as the stage ``plan-scale`` gave it, or as somebody edited it since; one that changes nothing is done at once.
    """

    plan: PlannedChange


def begin_apply_plan(cluster: Cluster, request: ApplyPlanRequest, identity: StageIdentity) -> Handle:
    """Create or adopt the ScalePlan; errors as `plans.create_plan`."""
    if not request.plan.changes:
        namespace = request.namespace or cluster.namespace
        job = client.get(cluster, ownership.resource_of(ELASTIC_JOB), request.job, namespace)
        uid = job["metadata"]["uid"]
        return Handle(kind=ELASTIC_JOB, namespace=namespace, name=request.job, goal=ExistsGoal(), uid=uid)

    def spec(job: ElasticJob) -> dict[str, Any]:
        scale_plans.check_roles(job, request.plan.replicas, "plan.replicas")
        return dict(request.plan.spec())

    return scale_plans.create_plan(cluster, request, scale_plans.PlanDraft("apply", spec), identity)


APPLY_PLAN = StageSpec("apply-plan", ApplyPlanRequest, begin_apply_plan)
