"""Enable or disable autoscaling of a job, by the cluster's autoscaler or the job's own master, by editing its
annotation."""

from typing import Annotated

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.scaling import scaled_by_master
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.pipelines.stages.description import Argument, IfFinishedField, JobRequest, StageSpec
from edl_workflows.pipelines.waiting.goals import ExistsGoal, Handle, IfFinished
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster

BOUNDS = Argument(
    "true: within the bounds of the spec; false: disabled; or bounds such as 2-8.",
    cli="argument", cli_name="bounds", argo=True, templated=True,
)  # fmt: skip


class AutoscaleRequest(JobRequest):
    """The job, and the bounds of its autoscaling.

    Attributes:
        bounds: "true" (within the bounds of the spec), "false" (disabled), or bounds such as "2-8".
        if_finished: what to do if the job has succeeded: "skip" the task (default), "fail" it without
            retries, or let it "succeed".
    """

    bounds: Annotated[str, BOUNDS] = autoscaling.ON
    if_finished: IfFinishedField = IfFinished.SKIP


def begin_autoscale(cluster: Cluster, request: AutoscaleRequest, _identity: StageIdentity) -> Handle:
    """Write the annotation. A job that has ended is left as it is.

    Raises:
        NotFoundError: the job does not exist.
        InvalidError: its kind is not autoscaled, or the bounds don't fit it; nothing was changed.
    """
    kind = kind_of(request.kind)
    namespace = request.namespace or cluster.namespace
    manifest = client.get(cluster, kind.source.api, request.name, namespace)
    if (ended := Handle.of_ended(kind.name, manifest, request.if_finished)) is not None:
        return ended
    annotations = manifest["metadata"].get("annotations") or {}
    desired = {**annotations, autoscaling.ANNOTATION: request.bounds}
    job = kind.model.parse(manifest | {"metadata": manifest["metadata"] | {"annotations": desired}})
    elastic = kind.elastic(job) if kind.elastic is not None else None
    if elastic is not None:
        autoscaling.permitted_bounds(job, elastic)
    elif scaled_by_master(job):
        autoscaling.read_annotation(job)
    elif request.bounds != autoscaling.OFF:
        problem = Problem(
            "bounds",
            "this job is not autoscaled: its kind has no bounds, its role says autoScale: false, "
            "it is preemptible, or it is ending",
        )
        raise ManifestError(f"autoscaling of {kind.name} {job.key}", [problem])
    if desired != annotations:
        edit = {"uid": job.metadata.uid, "annotations": {autoscaling.ANNOTATION: request.bounds}}
        manifest = client.patch(cluster, kind.source.api, request.name, {"metadata": edit}, namespace)
    return Handle.of(kind.name, manifest, ExistsGoal())


AUTOSCALE = StageSpec(
    "autoscale",
    "Enable or disable autoscaling of a job, by the cluster's autoscaler or by an ElasticJob's own master.",
    AutoscaleRequest,
    begin_autoscale,
    waits="never",
    operator="AutoscaleJobOperator",
)
