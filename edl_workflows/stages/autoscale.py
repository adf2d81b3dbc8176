"""Let an autoscaler change a job, the cluster's or the job's own master, within bounds or not at all: an edit of its annotation."""

from edl_workflows.exceptions import InvalidError, ManifestError, Problem
from edl_workflows.jobs import autoscaling
from edl_workflows.jobs.elastic_job.scaling import scaled_by_master
from edl_workflows.jobs.kinds import kind_of
from edl_workflows.jobs.view import JobView
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import version_of
from edl_workflows.stages.description import JobRequest, StageSpec
from edl_workflows.stages.goals import ExistsGoal, Handle, read_object
from edl_workflows.stages.identity import StageIdentity


class AutoscaleRequest(JobRequest):
    """Which job, and how far.

    Attributes:
        bounds: "true" (as far as the spec allows), "false" (not at all), or bounds such as "2-8".
    """

    bounds: str = autoscaling.ON


def begin_autoscale(cluster: Cluster, request: AutoscaleRequest, _identity: StageIdentity) -> Handle:
    """Write the annotation.

    Raises:
        NotFoundError: there is no such job.
        InvalidError: it has ended, its kind is not autoscaled, or the bounds don't fit it; nothing was changed.
    """
    row = kind_of(request.kind)
    namespace = request.namespace or cluster.namespace
    found = client.get(cluster, row.source.api, request.name, namespace)
    seen = read_object(row.name, found)
    if isinstance(seen, JobView) and seen.phase.final:
        message = f"{row.name} {namespace}/{request.name} has ended in phase {seen.phase}; it is not scaled any more"
        raise InvalidError(message)
    marked = {**(found["metadata"].get("annotations") or {}), autoscaling.ANNOTATION: request.bounds}
    job = row.model.parse(found | {"metadata": found["metadata"] | {"annotations": marked}})
    elastic = row.elastic(job) if row.elastic is not None else None
    if elastic is not None:
        autoscaling.permitted_bounds(job, elastic)
    elif scaled_by_master(job):
        autoscaling.read_annotation(job)
    elif request.bounds != autoscaling.OFF:
        problem = Problem(
            "bounds",
            "the autoscaler leaves this job alone: its kind has no bounds, its role says autoScale: false, "
            "it is preemptible, or it is ending",
        )
        raise ManifestError(f"autoscaling of {row.name} {job.key}", [problem])
    if marked != (found["metadata"].get("annotations") or {}):
        metadata = {
            "uid": job.metadata.uid,
            "annotations": {autoscaling.ANNOTATION: request.bounds},
        }
        found = client.patch(cluster, row.source.api, request.name, {"metadata": metadata}, namespace)
    return Handle(
        kind=row.name,
        namespace=namespace,
        name=request.name,
        goal=ExistsGoal(),
        uid=job.metadata.uid,
        version=version_of(found),
    )


AUTOSCALE = StageSpec("autoscale", AutoscaleRequest, begin_autoscale)
