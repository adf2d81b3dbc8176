"""Read the state of a job: phase, step, checkpoint. For a task that follows one that did not wait."""

from edl_workflows.pipelines.stages.description import JobRequest, StageSpec
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import ExistsGoal, Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster


class CollectRequest(JobRequest):
    """The job to read."""


def begin_collect(cluster: Cluster, request: CollectRequest, _identity: StageIdentity) -> Handle:
    """Check that the job exists.

    Raises:
        NotFoundError: it does not.
    """
    namespace = request.namespace or cluster.namespace
    job = client.get(cluster, ownership.resource_of(request.kind), request.name, namespace)
    return Handle.of(request.kind, job, ExistsGoal())


COLLECT = StageSpec(
    "collect", "Read a job's phase, step and checkpoint.", CollectRequest, begin_collect, waits="never"
)
