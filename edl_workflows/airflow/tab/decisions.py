"""Approves and rejects plans of a job on behalf of a person."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import Field

from edl_workflows.airflow.tab.describe import REJECTED_ANNOTATION, find_proposal, may_be_withdrawn
from edl_workflows.core.exceptions import ConflictError, NotFoundError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan.model import KIND as PLAN_KIND
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.reported_text import inert_text
from edl_workflows.pipelines.stages.apply_plan import APPLY, ApplyAdviceRequest, begin_apply_plan
from edl_workflows.pipelines.waiting.advised_change import AdvisedChange
from edl_workflows.pipelines.waiting.goals import ExistsGoal, Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, SCALE_PLANS, Scope


class Decision(Message):
    """What a person decided.

    Attributes:
        kind, namespace, name: the job.
        proposal: id of the proposal that was seen; "" if the decision is about a ScalePlan.
        plan: name of the ScalePlan to reject; "" if the decision is about a proposal.
    """

    action: Literal["approve", "reject"]
    kind: str = Field(max_length=63)
    namespace: str = Field(max_length=253)
    name: str = Field(max_length=253)
    proposal: str = Field(default="", max_length=64)
    plan: str = Field(default="", max_length=253)


@dataclass(frozen=True)
class Decider:
    """Who decides.

    Attributes:
        user: name of the Airflow user.
        dag_id: the DAG that the user has the right to edit.
        now: the time of the decision.
    """

    user: str
    dag_id: str
    now: datetime


def read_plans(cluster: Cluster, job: str, namespace: str | None) -> list[ScalePlan]:
    """All ScalePlans of a job, including those that this version would reject as invalid."""
    scope = Scope(SCALE_PLANS, namespace or cluster.namespace, label_selector=f"{names.JOB_LABEL}={job}")
    return [ScalePlan.read_stored(plan)[0] for plan in client.list_objects(cluster, scope).items]


def carry_out(cluster: Cluster, job: ElasticJob, decision: Decision, decider: Decider) -> str:
    """Carry out a decision. May be repeated.

    Returns:
        What was done, as a message for the user.

    Raises:
        ConflictError: the proposal or plan has changed since the user saw it, or the plan has begun.
        NotFoundError: the plan is gone.
        InvalidError: the plan does not fit the job.
    """
    if decision.plan:
        return _withdraw(cluster, job, decision)
    if decision.action == "approve":
        return f"{_approve(cluster, job, decision, decider)} created"
    return _reject(cluster, job, decision, decider)


def _find_seen(cluster: Cluster, job: ElasticJob, decision: Decision) -> AdvisedChange:
    """The proposal that the user saw.

    Raises:
        ConflictError: the optimizer no longer proposes this.
    """
    proposal = find_proposal(job, read_plans(cluster, job.metadata.name, job.metadata.namespace))
    if proposal is None or proposal[0] != decision.proposal:
        raise ConflictError("the plan has changed since it was shown; look at the new one and decide again")
    return proposal[1]


def _approve(cluster: Cluster, job: ElasticJob, decision: Decision, decider: Decider) -> Handle:
    """Create the ScalePlan of the proposal."""
    # The name depends only on the proposal, so a second approval of it adopts the existing plan.
    owner = f"airflow-tab/{decider.dag_id}/{job.metadata.uid}/{decision.proposal}"
    identity = StageIdentity(owner=owner)
    namespace = job.metadata.namespace or cluster.namespace
    name = identity.name(f"{job.metadata.name}-{APPLY}")
    if client.find(cluster, SCALE_PLANS, name, namespace) is not None:
        return Handle(kind=PLAN_KIND, namespace=namespace, name=name, goal=ExistsGoal())
    change = _find_seen(cluster, job, decision)
    approved = {**change.reasons, "Airflow": f"approved by {inert_text(decider.user)[:200]}"}
    plan = change.model_copy(update={"reasons": approved})
    request = ApplyAdviceRequest(job=job.metadata.name, namespace=namespace, plan=plan)
    return begin_apply_plan(cluster, request, identity)


def _reject(cluster: Cluster, job: ElasticJob, decision: Decision, decider: Decider) -> str:
    """Record on the job that its proposal was rejected."""
    _find_seen(cluster, job, decision)
    when = decider.now.isoformat(timespec="minutes")
    rejection = f"{decision.proposal} by {inert_text(decider.user)[:200]}, {when}"
    body = {"metadata": {"uid": job.metadata.uid, "annotations": {REJECTED_ANNOTATION: rejection}}}
    client.patch(cluster, ELASTIC_JOBS, job.metadata.name, body, job.metadata.namespace)
    return "the plan is rejected; the optimizer may propose another one"


def _withdraw(cluster: Cluster, job: ElasticJob, decision: Decision) -> str:
    """Delete a ScalePlan that has not begun."""
    if decision.action != "reject":
        raise ConflictError(f"ScalePlan {decision.plan} needs no approval; it can only be rejected")
    manifest = client.get(cluster, SCALE_PLANS, decision.plan, job.metadata.namespace)
    plan = ScalePlan.read_stored(manifest)[0]
    if plan.job != job.metadata.name:
        raise NotFoundError(f"ElasticJob {job.key} has no ScalePlan {decision.plan}")
    if not may_be_withdrawn(plan):
        raise ConflictError(
            f"ScalePlan {decision.plan} has begun; it ends by itself, completed or rolled back"
        )
    # With its resourceVersion, so that a plan that begins at this moment is not deleted.
    options = DeletionOptions(uid=plan.metadata.uid, resource_version=plan.metadata.resource_version)
    client.delete(cluster, SCALE_PLANS, decision.plan, job.metadata.namespace, options)
    return f"ScalePlan {decision.plan} deleted"
