"""Common code of the stages scale, checkpoint, migrate-ps and apply-plan, each of which creates a manual
ScalePlan of an ElasticJob."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from edl_workflows.core.exceptions import EdlError, ManifestError, Problem
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan import manual_plan
from edl_workflows.core.jobs.scale_plan.model import KIND, ScalePlanPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.description import JOB_NAME, Argument, IfFinishedField, StageRequest
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.advised_change import MAX_REASON
from edl_workflows.pipelines.waiting.goals import ChangeGoal, Handle, IfFinished
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object

PINS_ANNOTATION = f"{names.GROUP}/pins-replicas"
"""Marks a plan that sets replica counts of an autoscaled job, until the job's autoscaling has been
disabled."""
STEP_TIMEOUT = Argument("Time limit of each step of the change, in seconds.", argo=True)


class ChangeRequest(StageRequest):
    """A change of a running ElasticJob.

    If the operator's task is killed after the plan's first step, the plan still continues until it is
    completed or rolled back.

    Returns (XCom) a small dict: ``name`` (of the plan), ``namespace``, ``uid``, ``job``, ``phase``,
    ``checkpoint`` (``uri``, ``step``), and for a migration ``resumedStep`` and ``stallSeconds``.

    Attributes:
        job: name of the job, as ``submit.output["name"]``.
        namespace: namespace of the job; "" for the connection's.
        step_timeout_seconds: time limit of each step; a migration that exceeds it is rolled back.
        if_finished: what to do if the job succeeds before the change is complete: "skip" the task (default),
            "fail" it without retries, or let it "succeed".
    """

    job: Annotated[str, JOB_NAME] = Field(min_length=1)
    namespace: str = ""
    step_timeout_seconds: Annotated[int, STEP_TIMEOUT] = Field(default=600, ge=1, le=86_400)
    if_finished: IfFinishedField = IfFinished.SKIP


@dataclass(frozen=True)
class ChangeDraft:
    """How a stage creates its plan.

    Attributes:
        verb: readable part of the plan's name.
        spec: returns the plan's fields except ``ownerJob``; called only if a plan must be created.
        until: the phase that the stage waits for.
        pins: whether the plan sets replica counts. Autoscaling of the job is then disabled, so that they
            stay.
    """

    verb: str
    spec: Callable[[ElasticJob], dict[str, Any]]
    until: ScalePlanPhase = ScalePlanPhase.SUCCEEDED
    pins: bool = True


class _EndedError(Exception):
    """A plan would have to be created for a job that has ended."""


def create_plan(
    cluster: Cluster, request: ChangeRequest, draft: ChangeDraft, identity: StageIdentity
) -> Handle:
    """Create or adopt the plan; for a job that has ended, nothing is created.

    Raises:
        NotFoundError: the job does not exist.
        InvalidError: the change does not fit the job; nothing was created.
        ConflictError: a plan of that name exists and belongs to another owner.
    """
    namespace = request.namespace or cluster.namespace
    resource = ownership.resource_of(ELASTIC_JOB)
    job_manifest = client.get(cluster, resource, request.job, namespace)
    job, wrong = ElasticJob.read_stored(job_manifest)
    ended = Handle.of_ended(ELASTIC_JOB, job_manifest, request.if_finished)
    name = identity.existing_name or identity.name(f"{request.job}-{draft.verb}")
    target = ownership.ObjectRef(KIND, namespace, name)
    if ended is not None:  # no new plan can be made, so one that succeeded earlier remains the result
        identity = replace(identity, rerun=False)

    def make() -> dict[str, Any]:
        if ended is not None:
            raise _EndedError
        if wrong is not None and draft.pins:
            raise wrong  # its roles are unknown, and only a checkpoint needs no roles
        fields = {"stepTimeoutSeconds": request.step_timeout_seconds, **draft.spec(job)}
        reasons = filter(None, (fields.get("reason"), identity.requester))
        fields["reason"] = "; ".join(reasons)[:MAX_REASON]
        manifest = manual_plan.manual_plan(job, name, fields)
        if draft.pins and _autoscaled(job):
            manifest["metadata"]["annotations"] = {PINS_ANNOTATION: "true"}
        return manifest

    try:
        plan, is_adopted = ownership.create_or_adopt(cluster, target, make, identity)
    except _EndedError:
        assert ended is not None, "raised only then"
        return ended
    goal = ChangeGoal(phase=draft.until)
    handle = Handle.of(KIND, plan, goal, identity, request.if_finished, is_adopted=is_adopted)
    if PINS_ANNOTATION in plan["metadata"]["annotations"]:
        _pin(cluster, job, plan, handle)
    return handle


def check_roles(job: ElasticJob, roles: Iterable[str], path: str) -> None:
    """Check that the job has the roles that a change names.

    Raises:
        ManifestError: a role is missing.
    """
    has = sorted(job.spec.replica_specs)
    unknown = [role for role in roles if role not in has]
    if unknown:
        problems = [
            Problem(f"{path}.{role}", f"the job has no such role; it has {', '.join(has)}")
            for role in unknown
        ]
        raise ManifestError(f"change of ElasticJob {job.key}", problems)


def _autoscaled(job: ElasticJob) -> bool:
    return job.metadata.annotations.get(autoscaling.ANNOTATION, autoscaling.OFF) != autoscaling.OFF


def _pin(cluster: Cluster, job: ElasticJob, plan: Object, handle: Handle) -> None:
    """Disable the job's autoscaling, so that the requested replica counts stay until somebody enables it
    again.

    This follows the creation of the plan, so that a rejected plan changes nothing; autoscalers ignore a job
    with an unfinished plan. The plan's annotation records that autoscaling is still to be disabled: if this
    attempt dies, the next attempt that adopts the plan disables it.
    """
    try:
        if _autoscaled(job):
            metadata = {"uid": job.metadata.uid, "annotations": {autoscaling.ANNOTATION: autoscaling.OFF}}
            resource = ownership.resource_of(ELASTIC_JOB)
            client.patch(cluster, resource, job.metadata.name, {"metadata": metadata}, job.metadata.namespace)
        done = {"uid": plan["metadata"]["uid"], "annotations": {PINS_ANNOTATION: None}}
        client.patch(cluster, ownership.resource_of(KIND), handle.name, {"metadata": done}, handle.namespace)
    except EdlError:
        with contextlib.suppress(EdlError):
            ownership.cancel_object(cluster, handle)  # a plan that has begun is not withdrawn
        raise
