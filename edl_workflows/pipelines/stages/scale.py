"""Scale a running job: change the counts or sizes of its roles.

An ElasticJob is scaled by a ScalePlan, so that a change of parameter servers migrates them. Other kinds are
scaled by an edit of their spec, which their controllers carry out.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs import autoscaling, kinds
from edl_workflows.core.jobs.actions import RoleChange, SpecEdit
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.pipelines.stages import scale_plans
from edl_workflows.pipelines.stages.description import JOB_KIND, Argument, StageSpec
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object

REPLICAS = Argument("Counts and sizes by role, as YAML: {worker: {replicas: 3}}.", argo=True, templated=True)


class ScaleRequest(scale_plans.ChangeRequest):
    """The wanted counts, and the sizes of nodes created from now on.

    Attributes:
        kind: kind of the job. Jobs of other kinds than ElasticJob are scaled by an update of their spec.
        replicas: role → ``{"replicas": count, "resource": {"cpu": …, "memory": …, "gpu": …, "gpuType": …}}``;
            for the operator also role → count.
    """

    kind: Annotated[str, JOB_KIND] = ELASTIC_JOB
    replicas: Annotated[dict[str, ReplicaResourceSpec], REPLICAS] = Field(min_length=1)


def begin_scale(cluster: Cluster, request: ScaleRequest, identity: StageIdentity) -> Handle:
    """Create or adopt the plan, or edit the spec; raises as `scale_plans.create_plan`."""
    kind = kinds.kind_of(request.kind)
    if kind.scale is not None:
        return scale_by_spec(cluster, request, kind, request.replicas)
    if request.kind != ELASTIC_JOB:
        raise InvalidError(f"a {request.kind} can't be scaled")

    def spec(job: ElasticJob) -> dict[str, Any]:
        scale_plans.check_roles(job, request.replicas, "replicas")
        return {
            "replicaResourceSpecs": {
                role: replica_spec.to_dict() for role, replica_spec in request.replicas.items()
            }
        }

    return scale_plans.create_plan(cluster, request, scale_plans.ChangeDraft("scale", spec), identity)


def scale_by_spec(
    cluster: Cluster,
    request: scale_plans.ChangeRequest,
    kind: Kind,
    replicas: Mapping[str, ReplicaResourceSpec],
) -> Handle:
    """Edit the spec of a job of a kind that is scaled so, and wait until all its nodes run. A job that has
    ended is left as it is.

    Raises:
        NotFoundError: the job does not exist.
        InvalidError: the job has no such role, or its spec would be invalid; nothing was changed.
        ConflictError: others kept changing the job at the same time.
    """
    namespace = request.namespace or cluster.namespace

    def attempt() -> Handle:
        manifest = client.get(cluster, kind.source.api, request.job, namespace)
        if (ended := Handle.of_ended(kind.name, manifest, request.if_finished)) is not None:
            return ended
        scaling, done = _edit(manifest, kind, replicas)
        # Guarded by the version: a merge patch replaces whole lists, with whatever others have changed in
        # them.
        metadata = {key: manifest["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {"metadata": metadata | _pinned(manifest, kind), "spec": scaling.spec}
        changed = client.patch(cluster, kind.source.api, request.job, body, namespace)
        goal = JobGoal(phases=(JobPhase.RUNNING,), nodes=max(0, scaling.nodes - done))
        return Handle.of(kind.name, changed, goal, if_finished=request.if_finished)

    return client.retry_conflicts(attempt)


def _pinned(manifest: Object, kind: Kind) -> dict[str, Any]:
    """Disable autoscaling, so that the requested counts stay until somebody enables it again."""
    if kind.elastic is None:
        return {}
    job, wrong = kind.model.read_stored(manifest)
    if wrong is None and kind.elastic(job) is None:
        return {}
    return {"annotations": {autoscaling.ANNOTATION: autoscaling.OFF}}


def _edit(manifest: Object, kind: Kind, replicas: Mapping[str, ReplicaResourceSpec]) -> tuple[SpecEdit, int]:
    """The edit that scales a job, and how many of its nodes have succeeded.

    Raises:
        InvalidError: the job has no such role, or its spec would be invalid.
    """
    seen = kind.view_stored(manifest)
    scaling = kind.rescale(manifest, {role: _wanted(change) for role, change in replicas.items()})
    return scaling, sum(counts.succeeded for counts in seen.replicas.values())


def _wanted(change: ReplicaResourceSpec) -> RoleChange:
    size = change.resource
    if size.gpu_type is not None:
        raise InvalidError("gpuType applies to ElasticJobs only; other kinds set it in their pod template")
    named = {"cpu": size.cpu, "memory": size.memory, "nvidia.com/gpu": size.gpu, **size.others}
    return RoleChange(
        change.replicas, {name: str(amount) for name, amount in named.items() if amount is not None}
    )


SCALE = StageSpec(
    "scale",
    "Change how many nodes a running job has. A change of parameter servers checkpoints and migrates them.",
    ScaleRequest,
    begin_scale,
    operator="ScaleJobOperator",
)
