"""End a running job that a given pipeline created: the work of an exit handler. Any other job is left
alone."""

from typing import Annotated

from pydantic import Field

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.pipelines.stages.description import ENDED_JOB, Argument, JobRequest, StageSpec
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import ExistsGoal, GoneGoal, Handle, JobGoal
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION, StageIdentity
from edl_workflows.pipelines.waiting.observed import read_object
from edl_workflows.pipelines.waiting.ownership import CancelAction
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object

_STOPPED = (JobPhase.SUSPENDED, JobPhase.SUCCEEDED, JobPhase.FAILED)
POLICY = Argument(
    "What to do with the job: delete, suspend or keep.", argo=True, parameter="policy",
    operator_type='Literal["delete", "suspend"]',
)  # fmt: skip


class CancelRequest(JobRequest):
    """The job to end.

    The pipeline of an operator is the run of its task. Use the operator as the teardown of a submit that does
    not wait: ``CancelJobOperator(task_id="cancel").as_teardown(setups=submit)``. It waits until the job's
    pods are gone. A job that has ended is kept for inspection. A job that another run or a person created is
    left alone.

    Attributes:
        name: name of the job. A teardown leaves it out to end what its setups created, even if a setup failed
            after it had created a job and so has no result.
        owner: prefix of the owner annotation of jobs that may be ended:
            ``argo/<namespace>/<workflow>/<uid>/``.
        action: "delete" the job, or "suspend" it: its data position and checkpoints stay.
    """

    name: Annotated[str, ENDED_JOB] = Field(min_length=1)
    owner: str = Field(min_length=1)
    action: Annotated[CancelAction, POLICY] = "delete"


def begin_cancel(cluster: Cluster, request: CancelRequest, identity: StageIdentity) -> Handle:
    """Request the job's end.

    A job that has ended stays, so that it can be inspected. A job that is absent or another owner's is not an
    error.
    """
    resource = ownership.resource_of(request.kind)
    namespace = request.namespace or cluster.namespace
    target = ownership.ObjectRef(request.kind, namespace, request.name)
    job = client.find(cluster, resource, request.name, namespace)
    if job is None:
        identity.notify(f"{target} does not exist: there is nothing to cancel")
        return Handle(kind=request.kind, namespace=namespace, name=request.name, goal=GoneGoal())
    if spared := _why_spared(request, job):
        identity.notify(f"{target} is left alone: {spared}")
        return Handle.of(request.kind, job, ExistsGoal())
    uid = job["metadata"]["uid"]
    if request.action == "delete":
        identity.notify(f"{target} has not ended: it is deleted with its pods")
        # Foreground: the object stays until its pods are gone, so its absence proves that both are.
        options = DeletionOptions(uid=uid, propagation="Foreground")
        client.delete(cluster, resource, request.name, namespace, options)
        return Handle.of(request.kind, job, GoneGoal())
    identity.notify(f"{target} has not ended: it is suspended")
    body = {"metadata": {"uid": uid}, "spec": kind_of(request.kind).suspension(suspend=True)}
    job = client.patch(cluster, resource, request.name, body, namespace)
    return Handle.of(request.kind, job, JobGoal(phases=_STOPPED))


def _why_spared(request: CancelRequest, job: Object) -> str:
    """Why the job is not ended; "" if it is."""
    if request.action == "keep":
        return "the action is keep"
    view = read_object(request.kind, job)
    if not isinstance(view, JobView):
        raise InvalidError(f"a {request.kind} is not a job; only jobs can be cancelled")
    owner = ownership.annotation_of(job, OWNER_ANNOTATION)
    if view.phase.final:
        return f"it has ended ({view.phase})"
    if not owner.startswith(request.owner):
        return f"it belongs to {owner}" if owner else "it was not created by a pipeline"
    return ""


CANCEL = StageSpec(
    "cancel",
    "End a job that a given pipeline created, if it has not ended.",
    CancelRequest,
    begin_cancel,
    operator="CancelJobOperator",
)
