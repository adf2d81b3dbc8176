"""Ask what a job's optimizer would change now. Nothing is changed: a later task may apply the plan, once it is approved."""

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.elastic_job.scaling import scaled_by_master
from edl_workflows.jobs.kinds import kind_of
from edl_workflows.jobs.view import JobView
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages.description import JobRequest, StageSpec
from edl_workflows.stages.goals import Handle, PlannedGoal, read_object
from edl_workflows.stages.identity import StageIdentity


class PlanScaleRequest(JobRequest):
    """Which job's plan.

    Attributes:
        wait_for_change: wait for a plan that changes something; else the first one is taken, which may be to change nothing.
    """

    wait_for_change: bool = False


def begin_plan_scale(cluster: Cluster, request: PlanScaleRequest, _identity: StageIdentity) -> Handle:
    """Nothing is done; the handle says what to look at.

    Raises:
        NotFoundError: there is no such job.
        InvalidError: it has ended, or its plans are made elsewhere.
    """
    row = kind_of(request.kind)
    namespace = request.namespace or cluster.namespace
    found = client.get(cluster, row.source.api, request.name, namespace)
    job, seen = row.model.parse(found), read_object(row.name, found)
    if isinstance(seen, JobView) and seen.phase.final:
        message = f"{row.name} {job.key} has ended in phase {seen.phase}; nothing is planned for it any more"
        raise InvalidError(message)
    if not scaled_by_master(job):
        raise InvalidError(f"{row.name} {job.key} {explain_no_plan(sized=row.elastic is not None)}")
    return Handle(
        kind=row.name,
        namespace=namespace,
        name=request.name,
        goal=PlannedGoal(change=request.wait_for_change),
        uid=job.metadata.uid,
    )


def explain_no_plan(*, sized: bool) -> str:
    """Why a job that its master does not plan has no plan to ask for.

    Args:
        sized: whether the cluster's autoscaler knows jobs of the kind.
    """
    if not sized:
        return "is of a kind that nobody scales but its users; there is no plan to ask for"
    return (
        "is sized by the cluster's autoscaler, together with all other jobs, and no job says what that plans: run "
        "`edl controller run --autoscaler-dry-run`, and read the job's Events AutoscalePlanned (`edl describe`); "
        "an ElasticJob with optimizeMode single-job or cluster has a plan of its own"
    )


PLAN_SCALE = StageSpec("plan-scale", PlanScaleRequest, begin_plan_scale)
