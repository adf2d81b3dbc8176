"""Suspend and resume a job. A suspended job has no pods, but keeps its data position and its checkpoints."""

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.pipelines.stages.description import IfFinishedField, JobRequest, StageSpec
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle, IfFinished, JobGoal
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster


class SuspendRequest(JobRequest):
    """The job to suspend.

    The stage waits until the job is Suspended and its pods are gone. The operator's result is that of
    `SubmitJobOperator`.

    Attributes:
        if_finished: what to do if the job succeeds first: "skip" the task (default), "fail" it without
            retries, or let it "succeed".
    """

    if_finished: IfFinishedField = IfFinished.SKIP


class ResumeRequest(JobRequest):
    """The job to resume.

    The stage waits until the job is Running and its first node is ready.

    Attributes:
        if_finished: what to do if the job has succeeded: "skip" the task (default), "fail" it without
            retries, or let it "succeed".
    """

    if_finished: IfFinishedField = IfFinished.SKIP


def begin_suspend(cluster: Cluster, request: SuspendRequest, _identity: StageIdentity) -> Handle:
    """Set ``suspend`` in the job's spec. A job that has ended is left as it is.

    Raises:
        NotFoundError: the job does not exist.
        InvalidError: objects of this kind are not jobs.
    """
    return _switch(cluster, request, suspend=True, goal=JobGoal(phases=(JobPhase.SUSPENDED,)))


def begin_resume(cluster: Cluster, request: ResumeRequest, _identity: StageIdentity) -> Handle:
    """Unset ``suspend`` in the job's spec; raises as `begin_suspend`."""
    return _switch(cluster, request, suspend=False, goal=JobGoal(phases=(JobPhase.RUNNING,), nodes=1))


def _switch(
    cluster: Cluster, request: SuspendRequest | ResumeRequest, *, suspend: bool, goal: JobGoal
) -> Handle:
    kind = kind_of(request.kind)
    if kind.view is None:
        raise InvalidError(f"a {request.kind} is not a job; only jobs can be suspended and resumed")
    resource = ownership.resource_of(request.kind)
    namespace = request.namespace or cluster.namespace
    job = client.get(cluster, resource, request.name, namespace)
    if (ended := Handle.of_ended(request.kind, job, request.if_finished)) is not None:
        return ended
    if kind.suspended(job) is not suspend:
        body = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": kind.suspension(suspend=suspend)}
        job = client.patch(cluster, resource, request.name, body, namespace)
    return Handle.of(request.kind, job, goal, if_finished=request.if_finished)


SUSPEND = StageSpec(
    "suspend",
    "Release all pods of a job; its checkpoints and data position stay.",
    SuspendRequest,
    begin_suspend,
    operator="SuspendJobOperator",
)
RESUME = StageSpec(
    "resume",
    "Resume a suspended job from its newest checkpoint.",
    ResumeRequest,
    begin_resume,
    operator="ResumeJobOperator",
)
