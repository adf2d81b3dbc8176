"""The pure state machine of a ScalePlan.

Auto plans, which a job's master writes, are carried out here: they name pods to create and pods to delete.
Manual plans are carried out by the job's master. Here they are only tied to their job, and marked failed if
no master can carry them out: because the job is missing or finished, or the plan does not fit it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import left_alone, manifests
from edl_workflows.core.jobs.actions import (
    Actions,
    Deletion,
    Event,
    Manifest,
    Observed,
    Patch,
    Refusal,
    merge_patch,
)
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase
from edl_workflows.core.jobs.elastic_job.pods import NodeToMake, node_pod
from edl_workflows.core.jobs.scale_plan.model import (
    JOB_FAILED,
    JOB_FINISHED,
    NAME_CONFLICT,
    POD_REFUSED,
    PlanStep,
    PodMeta,
    ScalePlan,
    ScalePlanPhase,
)
from edl_workflows.core.jobs.scale_plan.plan_order import age_key, belongs_to_earlier_job, list_plans
from edl_workflows.core.jobs.scale_plan.validation import find_plan_problems
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Condition, set_condition

JOB_GRACE = timedelta(seconds=30)
"""How long a plan waits for its job to appear: both may come from one ``kubectl apply``."""

RETRY_SECONDS = 10.0
"""Time until the next attempt if the API server refused a create for now (a quota), or the job does not
validate.
"""

_CAUSE = 2048
"""Most characters of a failed job's message that its plan's message repeats."""


@dataclass(frozen=True)
class _Verdict:
    phase: ScalePlanPhase
    reason: str
    message: str = ""


def reconcile(plan: ScalePlan, observed: Observed) -> Actions:
    """What to do about a plan now. A finished plan is left alone."""
    # 1. Final phases are final.
    if plan.finished:
        return Actions()
    # 2. A plan without a job can't be carried out.
    manifest = observed.find(ELASTIC_JOB, plan.job)
    if manifest is None or manifests.is_terminating(manifest):
        return _without_job(plan, observed.now)
    if left_alone.is_left_alone(manifest):
        return Actions()
    try:
        job = ElasticJob.parse(manifest)
    except ManifestError:
        return Actions(requeue_after=RETRY_SECONDS)  # the job's own status reports the problem
    if belongs_to_earlier_job(plan, job):
        return Actions()
    # 3. Neither can a plan for a job that has ended, or one that does not fit its job.
    if hopeless := _hopeless(plan, job, observed):
        return _end(plan, hopeless, observed.now)
    # 4. A manual plan is only tied to the job; the rest is up to the master.
    if not plan.auto:
        return Actions(patch=_tie(plan, job))
    # 5. Plans of one job run in order.
    if _waits(plan, job, observed):
        return Actions()
    return _carry_out(plan, job, observed)


def _without_job(plan: ScalePlan, now: datetime) -> Actions:
    created = plan.metadata.creation_timestamp or now
    left = (created + JOB_GRACE - now).total_seconds()
    if left > 0:
        return Actions(requeue_after=left)
    message = f"there is no ElasticJob {plan.metadata.namespace or 'default'}/{plan.job} (spec.ownerJob)"
    return _end(plan, _Verdict(ScalePlanPhase.FAILED, "JobNotFound", message), now)


def _hopeless(plan: ScalePlan, job: ElasticJob, observed: Observed) -> _Verdict | None:
    if job.finished:
        succeeded = job.status.phase is ElasticJobPhase.SUCCEEDED
        end = [job.status.phase, *(() if succeeded else (job.status.reason, job.status.message[:_CAUSE]))]
        how = ": ".join(filter(None, end))
        message = f"ElasticJob {job.key} has ended ({how}); a plan can't change it any more"
        return _Verdict(ScalePlanPhase.FAILED, JOB_FINISHED if succeeded else JOB_FAILED, message)
    if plan.auto and job.spec.suspend:
        message = f"ElasticJob {job.key} is suspended; its next master asks anew"
        return _Verdict(ScalePlanPhase.FAILED, "JobSuspended", message)
    if not plan.auto and plan.status.phase not in (None, ScalePlanPhase.PENDING):
        return None  # it has begun: pods that it names may be gone by now
    own = sorted(manifests.name_of(p) for p in observed.of("Pod") if manifests.owned_by(p, job))
    nodes = [name for name in own if names.parse_node_name(job.metadata.name, name)]
    problems = find_plan_problems(plan, job, nodes)
    if problems:
        return _Verdict(ScalePlanPhase.FAILED, "InvalidPlan", "; ".join(map(str, problems))[:4096])
    return None


def _tie(plan: ScalePlan, job: ElasticJob) -> tuple[Patch, ...]:
    """Give the plan the labels that the master selects by, and the job as owner."""
    desired_labels = {names.JOB_LABEL: job.metadata.name, names.SCALE_TYPE_LABEL: names.SCALE_MANUAL}
    labels = {key: value for key, value in desired_labels.items() if plan.metadata.labels.get(key) != value}
    metadata: dict[str, Any] = {"labels": labels} if labels else {}
    owners = plan.metadata.owner_references
    if all(owner.uid != job.metadata.uid for owner in owners):
        reference = manifests.owner_reference(job, controller=False)
        metadata["ownerReferences"] = [*(owner.to_dict() for owner in owners), reference]
    if not metadata:
        return ()
    metadata["resourceVersion"] = plan.metadata.resource_version
    return (Patch(plan.api_version, plan.kind, plan.metadata.name, {"metadata": metadata}),)


def _waits(plan: ScalePlan, job: ElasticJob, observed: Observed) -> bool:
    """Whether the plan must wait for an older auto plan of the job. If the API server refuses the older
    plan's pods, only plans for the same pods wait: another plan may free the room that is missing."""
    older = [
        other
        for other in list_plans(observed, job)
        if other.auto and not other.finished and age_key(other) < age_key(plan)
    ]
    return any(other.status.reason != POD_REFUSED or _pods_of(other) & _pods_of(plan) for other in older)


def _pods_of(plan: ScalePlan) -> set[str]:
    return {pod.name for pod in (*plan.spec.create_pods, *plan.spec.remove_pods)}


def _carry_out(plan: ScalePlan, job: ElasticJob, observed: Observed) -> Actions:
    present = {_key(pod): pod for pod in observed.of("Pod")}
    planned_pods = [_pod(job, meta) for meta in plan.spec.create_pods]
    missing = [m for m in planned_pods if _key(m) not in present]
    foreign = [
        present[_key(m)]
        for m in planned_pods
        if _key(m) in present and not manifests.owned_by(present[_key(m)], job)
    ]
    if any(manifests.belongs_to_earlier(m, job) for m in foreign):
        return Actions(requeue_after=RETRY_SECONDS)  # their deletion is under way
    if foreign:
        return _end(
            plan,
            _Verdict(ScalePlanPhase.FAILED, NAME_CONFLICT, manifests.describe_conflict(foreign[0], job)),
            observed.now,
        )
    delete = tuple(_removals(plan, job, observed))
    refused = [r for r in observed.refused if (r.kind, r.name) in {_key(m) for m in missing}]
    if refused:
        return _refused(plan, refused, Actions(tuple(missing), delete), observed.now)
    # The status is written only after the creates and deletes have succeeded, so one round is enough.
    summary = f"{len(plan.spec.create_pods)} pods created, {len(plan.spec.remove_pods)} removed"
    ended = _end(plan, _Verdict(ScalePlanPhase.SUCCEEDED, "PlanSucceeded", summary), observed.now)
    return replace(ended, create=tuple(missing), delete=delete)


def _refused(plan: ScalePlan, refused: Sequence[Refusal], again: Actions, now: datetime) -> Actions:
    first = next((r for r in refused if r.invalid), refused[0])
    message = f"the API server refused {first.kind} {first.name}: {first.message}"
    if first.invalid:
        return _end(plan, _Verdict(ScalePlanPhase.FAILED, POD_REFUSED, message), now)
    status = _status(plan, _Verdict(ScalePlanPhase.SCALING, POD_REFUSED, message), now)
    return replace(again, status=status, requeue_after=RETRY_SECONDS)


def _pod(job: ElasticJob, meta: PodMeta) -> dict[str, Any]:
    role = meta.type or names.WORKER_TYPE  # validation requires a type
    counts = job.status.replica_statuses.get(role)
    return node_pod(
        job,
        NodeToMake(role, meta.id, meta.rank_index, max(counts.desired if counts else 1, 1), meta.resource),
    )


def _removals(plan: ScalePlan, job: ElasticJob, observed: Observed) -> Iterator[Deletion]:
    listed = {meta.name for meta in plan.spec.remove_pods}
    for pod in observed.of("Pod"):
        listed_here = manifests.name_of(pod) in listed and manifests.owned_by(pod, job)
        if listed_here and not manifests.is_terminating(pod):
            yield manifests.delete_object(pod)


def _end(plan: ScalePlan, outcome: _Verdict, now: datetime) -> Actions:
    # No Event for an auto plan that succeeded: its pods show it.
    succeeded = outcome.phase is ScalePlanPhase.SUCCEEDED
    events = () if succeeded else (Event("Warning", outcome.reason, outcome.message),)
    return Actions(status=_status(plan, outcome, now), events=events)


def _status(plan: ScalePlan, outcome: _Verdict, now: datetime) -> dict[str, Any] | None:
    final = outcome.phase.final
    status = plan.status
    condition = Condition(
        type=outcome.phase.value, status="True", reason=outcome.reason, message=outcome.message
    )
    steps = [*status.steps]
    if plan.auto:
        begun = steps[0].start_time if steps else now
        finish, message = (now, "") if final else (None, outcome.message)
        steps = [
            PlanStep(phase=ScalePlanPhase.SCALING, start_time=begun, finish_time=finish, message=message)
        ]
    new = status.model_copy(
        update={
            "phase": outcome.phase,
            "reason": outcome.reason,
            "message": outcome.message,
            "observed_generation": plan.metadata.generation,
            "conditions": set_condition(status.conditions, condition, now),
            "create_time": status.create_time or plan.metadata.creation_timestamp or now,
            "finish_time": now if final else None,
            "steps": steps,
        }
    )
    return merge_patch(status.stored(), new.to_dict())


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifests.name_of(manifest)
