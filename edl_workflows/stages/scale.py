"""Scale a running job: other counts or sizes of its roles.

An ElasticJob is scaled by a ScalePlan, so that a change of parameter servers migrates them. Other kinds are scaled by their
spec; their controllers say what follows.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from edl_workflows.exceptions import ConflictError, InvalidError
from edl_workflows.jobs import autoscaling, kinds
from edl_workflows.jobs.actions import RoleChange, SpecEdit
from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.jobs.elastic_job.model import ElasticJob
from edl_workflows.jobs.kind import Kind
from edl_workflows.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.jobs.view import JobPhase
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object, version_of
from edl_workflows.stages import scale_plans
from edl_workflows.stages.description import StageSpec
from edl_workflows.stages.goals import Handle, JobGoal
from edl_workflows.stages.identity import StageIdentity

ATTEMPTS = 5
"""At an edit of a spec that others change at the same time."""


class ScaleRequest(scale_plans.PlanRequest):
    """Wanted state.

    Attributes:
        kind: of the job.
        replicas: by role: count, and the size of nodes made from now on.
    """

    kind: str = ELASTIC_JOB
    replicas: dict[str, ReplicaResourceSpec] = Field(min_length=1)


def begin_scale(cluster: Cluster, request: ScaleRequest, identity: StageIdentity) -> Handle:
    """Create or adopt the plan, or edit the spec; errors as `plans.create_plan`."""
    row = kinds.kind_of(request.kind)
    if row.scale is not None:
        return scale_by_spec(cluster, request, row, request.replicas)
    if request.kind != ELASTIC_JOB:
        raise InvalidError(f"a {request.kind} can't be scaled")

    def spec(job: ElasticJob) -> dict[str, Any]:
        scale_plans.check_roles(job, request.replicas, "replicas")
        return {"replicaResourceSpecs": {role: wanted.to_dict() for role, wanted in request.replicas.items()}}

    return scale_plans.create_plan(cluster, request, scale_plans.PlanDraft("scale", spec), identity)


def scale_by_spec(
    cluster: Cluster,
    request: scale_plans.PlanRequest,
    row: Kind,
    replicas: Mapping[str, ReplicaResourceSpec],
) -> Handle:
    """Edit the spec of a job whose kind is scaled so, and wait until all its nodes run.

    Raises:
        NotFoundError: there is no such job.
        InvalidError: the job has ended, has no such role, or its spec would be invalid; nothing was changed.
        ConflictError: others change the job all the time.
    """
    namespace = request.namespace or cluster.namespace
    for attempt in range(1, ATTEMPTS + 1):
        found = client.get(cluster, row.source.api, request.job, namespace)
        scaling, done = _edit(found, row, replicas)
        # Of this very version: a list in the spec is patched whole, with what anybody else has changed in it.
        metadata = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {"metadata": metadata | _pinned(found, row), "spec": scaling.spec}
        try:
            changed = client.patch(cluster, row.source.api, request.job, body, namespace)
        except ConflictError:
            if attempt == ATTEMPTS:
                raise
            continue
        break
    return Handle(
        kind=row.name,
        namespace=namespace,
        name=request.job,
        goal=JobGoal(phases=(JobPhase.RUNNING,), nodes=max(0, scaling.nodes - done)),
        uid=changed["metadata"]["uid"],
        version=version_of(changed),
    )


def _pinned(found: Object, row: Kind) -> dict[str, Any]:
    """Whoever asks for a number gets it: the autoscaler leaves the job as it is until it is switched on again."""
    if row.elastic is None:
        return {}
    job, wrong = row.model.read_stored(found)
    if wrong is None and row.elastic(job) is None:
        return {}
    return {"annotations": {autoscaling.ANNOTATION: autoscaling.OFF}}


def _edit(found: Object, row: Kind, replicas: Mapping[str, ReplicaResourceSpec]) -> tuple[SpecEdit, int]:
    """The edit that scales a job, and how many of its nodes have succeeded.

    Raises:
        InvalidError: the job has ended, has no such role, or its spec would be invalid.
    """
    seen = row.view_stored(found)
    if seen.phase.final:
        raise InvalidError(
            f"{row.name} {seen.namespace}/{seen.name} has ended in phase {seen.phase}; "
            "a job can be changed only before it ends"
        )
    scaling = row.rescale(found, {role: _wanted(change) for role, change in replicas.items()})
    return scaling, sum(counts.succeeded for counts in seen.replicas.values())


def _wanted(change: ReplicaResourceSpec) -> RoleChange:
    size = change.resource
    if size.gpu_type is not None:
        raise InvalidError(
            "gpuType: only the GPUs of an ElasticJob have one; other kinds say it in their template"
        )
    named = {"cpu": size.cpu, "memory": size.memory, "nvidia.com/gpu": size.gpu, **size.others}
    return RoleChange(
        change.replicas, {name: str(amount) for name, amount in named.items() if amount is not None}
    )


SCALE = StageSpec("scale", ScaleRequest, begin_scale)
