"""Apply the result of the stage ``plan-scale``: counts, sizes and migrations in one ScalePlan, with the
reasons."""

from typing import Annotated, Any

from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.pipelines.stages import scale_plans
from edl_workflows.pipelines.stages.description import Argument, StageSpec
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.advised_change import AdvisedChange
from edl_workflows.pipelines.waiting.goals import ExistsGoal, Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster

APPLY = "apply"
"""Readable part of the plan's name."""


class ApplyAdviceRequest(scale_plans.ChangeRequest):
    """The plan to apply.

    It is applied in one ScalePlan: counts, sizes and migrations, with the reasons. Like every operator that
    sets counts, this disables autoscaling of the job. An empty plan succeeds at once.

    Attributes:
        plan: the output ``plan`` of the stage ``plan-scale`` (``plan.output["plan"]``), possibly edited by a
            person.
    """

    plan: Annotated[
        AdvisedChange,
        Argument("Output parameter plan of the step plan-scale: JSON.", argo=True, templated=True),
    ]


def begin_apply_plan(cluster: Cluster, request: ApplyAdviceRequest, identity: StageIdentity) -> Handle:
    """Create or adopt the ScalePlan; raises as `scale_plans.create_plan`."""
    if not request.plan.changes:
        namespace = request.namespace or cluster.namespace
        job = client.get(cluster, ownership.resource_of(ELASTIC_JOB), request.job, namespace)
        return Handle.of(ELASTIC_JOB, job, ExistsGoal())

    def spec(job: ElasticJob) -> dict[str, Any]:
        scale_plans.check_roles(job, request.plan.replicas, "plan.replicas")
        return dict(request.plan.spec())

    return scale_plans.create_plan(cluster, request, scale_plans.ChangeDraft(APPLY, spec), identity)


APPLY_PLAN = StageSpec(
    "apply-plan",
    "Apply a plan of the stage plan-scale.",
    ApplyAdviceRequest,
    begin_apply_plan,
    operator="ApplyPlanOperator",
)
