"""End a job that still goes on, if a certain pipeline made it: what an exit handler does. Any other job is left alone."""

from pydantic import Field

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.kinds import kind_of
from edl_workflows.jobs.view import JobPhase, JobView
from edl_workflows.kube import client
from edl_workflows.kube.client import DeleteOptions
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object, version_of
from edl_workflows.stages import ownership
from edl_workflows.stages.description import JobRequest, StageSpec
from edl_workflows.stages.goals import ExistsGoal, Goal, GoneGoal, Handle, JobGoal, read_object
from edl_workflows.stages.identity import OWNER_ANNOTATION, StageIdentity
from edl_workflows.stages.ownership import CancelAction

_AT_REST = (JobPhase.SUSPENDED, JobPhase.SUCCEEDED, JobPhase.FAILED)


class CancelRequest(JobRequest):
    """Which job.

    Attributes:
        owner: how the mark of the job's owner begins, as ``argo/<namespace>/<workflow>/<uid>/``.
        action: what to do with it.
    """

    owner: str = Field(min_length=1)
    action: CancelAction = "delete"


def begin_cancel(cluster: Cluster, request: CancelRequest, _identity: StageIdentity) -> Handle:
    """Ask for its end. A job that has ended stays, to be looked at; one that is another's, or absent, is no error."""
    resource = ownership.resource_of(request.kind)
    namespace = request.namespace or cluster.namespace
    job = client.find(cluster, resource, request.name, namespace)
    if job is None:
        return Handle(kind=request.kind, namespace=namespace, name=request.name, goal=GoneGoal())
    metadata = job["metadata"]
    goal: Goal = ExistsGoal()
    if request.action != "keep" and _goes_on(request.kind, job) and _is_of(request.owner, job):
        if request.action == "delete":
            # Foreground: the object stays until its pods are gone, so that its absence says both.
            options = DeleteOptions(uid=metadata["uid"], propagation="Foreground")
            client.delete(cluster, resource, request.name, namespace, options)
            goal = GoneGoal()
        else:
            body = {
                "metadata": {"uid": metadata["uid"]},
                "spec": kind_of(request.kind).suspension(suspend=True),
            }
            job = client.patch(cluster, resource, request.name, body, namespace)
            goal = JobGoal(phases=_AT_REST)
    return Handle(
        kind=request.kind,
        namespace=namespace,
        name=request.name,
        goal=goal,
        uid=metadata["uid"],
        version=version_of(job),
    )


def _goes_on(kind: str, job: Object) -> bool:
    seen = read_object(kind, job)
    if not isinstance(seen, JobView):
        raise InvalidError(f"a {kind} is no job; only jobs are cancelled")
    return not seen.phase.final


def _is_of(owner: str, job: Object) -> bool:
    mark = (job["metadata"].get("annotations") or {}).get(OWNER_ANNOTATION, "")
    return str(mark).startswith(owner)


CANCEL = StageSpec("cancel", CancelRequest, begin_cancel)
