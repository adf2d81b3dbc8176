"""Read what a job's optimizer would change now. Nothing is changed: a later task may apply the plan after
approval."""

from typing import Annotated

from pydantic import Field

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.scaling import scaled_by_master
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.pipelines.stages.description import Argument, IfFinishedField, JobRequest, StageSpec
from edl_workflows.pipelines.waiting.goals import AdviceGoal, Handle, IfFinished
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster

JOB = Argument("The job's name.", argo=True, parameter="job", operator="job", templated=True)


class ReadAdviceRequest(JobRequest):
    """The job whose plan to read.

    Its own optimizer makes the plan (``optimizeMode: single-job`` or ``cluster``). `ApplyPlanOperator`
    applies it.

    Returns (XCom) a small dict: ``name``, ``namespace``, ``uid``, ``job``, ``phase``, ``step`` and ``plan``:
    ``replicas`` (role → ``{"replicas": …, "resource": {…}}``), ``migrate`` (pods to replace), ``reasons``,
    ``notes``, ``optimizer``, ``stage``, and ``empty``, whether nothing would change.

    Attributes:
        kind: kind of the job. Jobs of other kinds than ElasticJob have no plans of an optimizer, so they
            cause an error.
        wait_for_change: wait for a plan that changes something; else the first plan is taken, even if it is
            empty.
        if_finished: what to do if the job succeeds before there is a plan: "skip" the task (default), "fail"
            it without retries, or let it "succeed" with an empty plan.
    """

    name: Annotated[str, JOB] = Field(min_length=1)
    wait_for_change: Annotated[bool, Argument("Wait for a plan that changes something.")] = False
    if_finished: IfFinishedField = IfFinished.SKIP


def begin_plan_scale(cluster: Cluster, request: ReadAdviceRequest, _identity: StageIdentity) -> Handle:
    """Return what to wait for; nothing is changed.

    Raises:
        NotFoundError: the job does not exist.
        InvalidError: the job has no master that plans for it.
    """
    kind = kind_of(request.kind)
    manifest = client.get(cluster, kind.source.api, request.name, request.namespace or cluster.namespace)
    job, ended = kind.model.parse(manifest), kind.view_stored(manifest).phase.final
    if not ended and not scaled_by_master(job):
        raise InvalidError(f"{kind.name} {job.key} {explain_no_plan(sized=kind.elastic is not None)}")
    goal = AdviceGoal(change=request.wait_for_change)
    return Handle.of(kind.name, manifest, goal, if_finished=request.if_finished)


def explain_no_plan(*, sized: bool) -> str:
    """Explain why a job without a planning master has no plan.

    Args:
        sized: whether the cluster's autoscaler handles jobs of the kind.
    """
    if not sized:
        return "is of a kind that only its users scale; it has no plan"
    return (
        "has no plan of its own: its users scale it, or, if it has bounds (`edl autoscale`), the cluster's "
        "autoscaler, which plans all jobs together; the autoscaler's plans are Events AutoscalePlanned of "
        "the job (`edl describe`), and with `edl controller run --autoscaler-dry-run` it only plans; an "
        "ElasticJob with optimizeMode single-job or cluster has a plan of its own"
    )


PLAN_SCALE = StageSpec(
    "plan-scale",
    "Read what a job's optimizer would change now; nothing is changed.",
    ReadAdviceRequest,
    begin_plan_scale,
    operator="PlanScaleOperator",
)
