"""Suspend a job and resume it: no pods in between, but the data position and the checkpoints stay."""

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.kinds import kind_of
from edl_workflows.jobs.view import JobPhase, JobView
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import version_of
from edl_workflows.stages import ownership
from edl_workflows.stages.description import JobRequest, StageSpec
from edl_workflows.stages.goals import Handle, JobGoal, read_object
from edl_workflows.stages.identity import StageIdentity


class SuspendRequest(JobRequest):
    """Which job to suspend; the stage waits until its pods are gone."""


class ResumeRequest(JobRequest):
    """Which job to resume; the stage waits until it runs and the first of its nodes is ready."""


def begin_suspend(cluster: Cluster, request: SuspendRequest, _identity: StageIdentity) -> Handle:
    """Say that the job shall have no pods.

    Raises:
        NotFoundError: there is no such job.
        InvalidError: it has ended.
    """
    return _set(cluster, request, suspend=True, goal=JobGoal(phases=(JobPhase.SUSPENDED,)))


def begin_resume(cluster: Cluster, request: ResumeRequest, _identity: StageIdentity) -> Handle:
    """Say that the job shall run; errors as `begin_suspend`."""
    return _set(cluster, request, suspend=False, goal=JobGoal(phases=(JobPhase.RUNNING,), nodes=1))


def _set(cluster: Cluster, request: JobRequest, *, suspend: bool, goal: JobGoal) -> Handle:
    resource = ownership.resource_of(request.kind)
    namespace = request.namespace or cluster.namespace
    job = client.get(cluster, resource, request.name, namespace)
    seen = read_object(request.kind, job)
    if not isinstance(seen, JobView):
        raise InvalidError(f"a {request.kind} is no job; only jobs are suspended and resumed")
    if seen.phase.final:
        verb = "suspended" if suspend else "resumed"
        raise InvalidError(
            f"{request.kind} {namespace}/{request.name} has ended in phase {seen.phase}; it can't be {verb}"
        )
    row = kind_of(request.kind)
    if row.suspended(job) is not suspend:
        body = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": row.suspension(suspend=suspend)}
        job = client.patch(cluster, resource, request.name, body, namespace)
    return Handle(
        kind=request.kind,
        namespace=namespace,
        name=request.name,
        goal=goal,
        uid=job["metadata"]["uid"],
        version=version_of(job),
    )


SUSPEND = StageSpec("suspend", SuspendRequest, begin_suspend)
RESUME = StageSpec("resume", ResumeRequest, begin_resume)
