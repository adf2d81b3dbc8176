"""Read what a job has come to: phase, step, checkpoint. For the stage after the one that did not wait."""

from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import version_of
from edl_workflows.stages import ownership
from edl_workflows.stages.description import JobRequest, StageSpec
from edl_workflows.stages.goals import ExistsGoal, Handle
from edl_workflows.stages.identity import StageIdentity


class CollectRequest(JobRequest):
    """Which job."""


def begin_collect(cluster: Cluster, request: CollectRequest, _identity: StageIdentity) -> Handle:
    """See that the job is there.

    Raises:
        NotFoundError: it is not.
    """
    namespace = request.namespace or cluster.namespace
    job = client.get(cluster, ownership.resource_of(request.kind), request.name, namespace)
    return Handle(
        kind=request.kind,
        namespace=namespace,
        name=request.name,
        goal=ExistsGoal(),
        uid=job["metadata"]["uid"],
        version=version_of(job),
    )


COLLECT = StageSpec("collect", CollectRequest, begin_collect)
