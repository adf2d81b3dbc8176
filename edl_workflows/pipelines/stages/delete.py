"""Delete a job and wait until it and all its pods are gone."""

from typing import Annotated

from pydantic import Field

from edl_workflows.pipelines.stages.description import ENDED_JOB, JobRequest, StageSpec
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import GoneGoal, Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster


class DeleteRequest(JobRequest):
    """The job to delete.

    The stage deletes a job whoever created it, and waits until all its pods are gone. A job that does not
    exist counts as deleted.

    As a teardown the operator also removes a job that has ended:
    ``DeleteJobOperator(task_id="delete").as_teardown(setups=submit)``.

    Attributes:
        name: name of the job. A teardown leaves it out to end what its setups created, even if a setup failed
            after it had created a job and so has no result.
    """

    name: Annotated[str, ENDED_JOB] = Field(min_length=1)


def begin_delete(cluster: Cluster, request: DeleteRequest, _identity: StageIdentity) -> Handle:
    """Request the deletion."""
    resource = ownership.resource_of(request.kind)
    namespace = request.namespace or cluster.namespace
    manifest = client.find(cluster, resource, request.name, namespace)
    uid = str(manifest["metadata"]["uid"]) if manifest else ""
    if manifest:
        # Foreground: the object stays until its pods are gone, so its absence proves that both are.
        options = DeletionOptions(uid=uid, propagation="Foreground")
        client.delete(cluster, resource, request.name, namespace, options)
    return Handle(kind=request.kind, namespace=namespace, name=request.name, goal=GoneGoal(), uid=uid)


DELETE = StageSpec(
    "delete",
    "Delete a job and all its pods.",
    DeleteRequest,
    begin_delete,
    operator="DeleteJobOperator",
)
