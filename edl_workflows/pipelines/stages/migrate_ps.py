"""Replace the parameter servers of a running job: another count, other sizes, or both at once."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from edl_workflows.core.exceptions import InvalidError, ManifestError, Problem
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.manifests import get_label, is_terminating, name_of
from edl_workflows.core.jobs.scale_plan.model import NodeResource, ReplicaResourceSpec, ScalePlanPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import raise_problems
from edl_workflows.core.kubernetes.pod_state import has_ended
from edl_workflows.pipelines.stages import scale_plans
from edl_workflows.pipelines.stages.description import JOB_KIND, Argument, StageSpec
from edl_workflows.pipelines.stages.scale import scale_by_spec
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster

REPLICAS = Argument("Number of servers; empty: unchanged.", argo=True, templated=True)
RESOURCE = Argument("Size of added servers, as YAML: {cpu: '2'}.", argo=True, templated=True)
MIGRATE = Argument(
    "Ranks to replace and their new sizes, as YAML: {0: {cpu: '2'}}.", argo=True, templated=True,
    operator_type="Mapping[int | str, Mapping[str, Any]]",
)  # fmt: skip
UNTIL = Argument("Phase of the plan to wait for: Succeeded, or Restarting, when the new servers are ready.")


class MigratePsRequest(scale_plans.ChangeRequest):
    """The wanted parameter servers.

    Training continues while the new servers start, and pauses only for the switch. If anything fails, the job
    continues with its old servers and the task fails.

    Attributes:
        kind: kind of the job. Jobs of other kinds than ElasticJob have no ScalePlan: their controller ends
            all pods, which save what they can, and restarts the job with the new servers.
        replicas: number of servers; None for the current number.
        resource: size of added servers; of all servers if the kind has one template for them.
        migrate: rank → ``{"cpu": …, "memory": …, "gpu": …, "gpuType": …}``: servers to replace by servers of
            this size. A resource that is left out stays unchanged.
        until: phase of the plan to wait for: "Succeeded", or "Restarting", when the new servers are ready.
    """

    kind: Annotated[str, JOB_KIND] = ELASTIC_JOB
    replicas: Annotated[int | None, REPLICAS] = Field(default=None, ge=1, le=10_000)
    resource: Annotated[NodeResource, RESOURCE] = Field(default_factory=NodeResource)
    migrate: Annotated[dict[int, NodeResource], MIGRATE] = Field(default_factory=dict)
    until: Annotated[ScalePlanPhase, UNTIL] = ScalePlanPhase.SUCCEEDED

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind != ELASTIC_JOB:
            if self.migrate:
                message = f"the servers of a {self.kind} share one template: give resource, for all of them"
                raise_problems([Problem("migrate", message)])
            if self.replicas is None and not self.resource.to_dict():
                raise_problems(
                    [Problem("replicas", "give a count, a resource, or both; there is nothing to do")]
                )
        elif self.replicas is None and not self.migrate:
            raise_problems(
                [Problem("replicas", "give a count, ranks to migrate, or both; there is nothing to do")]
            )
        return self


def begin_migrate_ps(cluster: Cluster, request: MigratePsRequest, identity: StageIdentity) -> Handle:
    """Ask for other parameter servers: by a ScalePlan (ElasticJob) or an edit of the spec (other kinds).

    Raises:
        EdlError: the errors of `scale_plans.create_plan`.
        InvalidError: jobs of this kind have no parameter servers.
    """
    kind = kinds.kind_of(request.kind)
    if kind.scale is not None:
        servers = ReplicaResourceSpec(replicas=request.replicas, resource=request.resource)
        return scale_by_spec(cluster, request, kind, {names.PS_TYPE: servers})
    if request.kind != ELASTIC_JOB:
        raise InvalidError(f"a {request.kind} has no parameter servers to migrate")

    def spec(job: ElasticJob) -> dict[str, Any]:
        scale_plans.check_roles(job, (names.PS_TYPE,), "migrate")
        replica_spec = {"replicas": request.replicas, "resource": request.resource.to_dict()}
        return {
            "checkpoint": True,
            "replicaResourceSpecs": {
                names.PS_TYPE: {key: value for key, value in replica_spec.items() if value is not None}
            },
            "migratePods": _pods(cluster, job, request.migrate),
        }

    return scale_plans.create_plan(
        cluster, request, scale_plans.ChangeDraft("migrate", spec, request.until), identity
    )


def _pods(cluster: Cluster, job: ElasticJob, migrate: dict[int, NodeResource]) -> list[dict[str, Any]]:
    """The pods that hold these ranks now, as entries of a ScalePlan."""
    if not migrate:
        return []
    selector = f"{names.JOB_LABEL}={job.metadata.name},{names.REPLICA_TYPE_LABEL}={names.PS_TYPE}"
    scope = resources.Scope(
        resources.PODS, job.metadata.namespace or cluster.namespace, label_selector=selector
    )
    by_rank = {
        get_label(pod, names.RANK_INDEX_LABEL): name_of(pod)
        for pod in client.list_objects(cluster, scope).items
        if not has_ended(pod) and not is_terminating(pod)
    }
    missing = [rank for rank in migrate if str(rank) not in by_rank]
    if missing:
        has = ", ".join(sorted(by_rank)) or "none"
        problems = [
            Problem(f"migrate.{rank}", f"no parameter server of this rank is running; the ranks are {has}")
            for rank in missing
        ]
        raise ManifestError(f"migration of ElasticJob {job.key}", problems)
    return [
        {"name": by_rank[str(rank)], "type": names.PS_TYPE, "rankIndex": rank, "resource": size.to_dict()}
        for rank, size in sorted(migrate.items())
    ]


MIGRATE_PS = StageSpec(
    "migrate-ps",
    "Move a running job to other parameter servers: checkpoint, migrate, restart, verify.",
    MigratePsRequest,
    begin_migrate_ps,
    operator="MigrateParameterServersOperator",
)
