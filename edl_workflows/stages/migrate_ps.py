"""Move a running job to other parameter servers: another count, other sizes, or both at once."""

from typing import Any, Self

from pydantic import Field, model_validator

from edl_workflows.exceptions import InvalidError, ManifestError, Problem
from edl_workflows.jobs import kinds, names
from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.jobs.elastic_job.model import ElasticJob
from edl_workflows.jobs.manifests import get_label, has_ended, is_terminating, name_of
from edl_workflows.jobs.objects import raise_problems
from edl_workflows.jobs.scale_plan.model import NodeResource, ReplicaResourceSpec, ScalePlanPhase
from edl_workflows.kube import client, resources
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import scale_plans
from edl_workflows.stages.description import StageSpec
from edl_workflows.stages.goals import Handle
from edl_workflows.stages.identity import StageIdentity
from edl_workflows.stages.scale import scale_by_spec


class MigratePsRequest(scale_plans.PlanRequest):
    """The parameter servers that the job shall have.

    Attributes:
        kind: of the job. One that is scaled by its spec ends all its pods, which save what they can, and begins anew with
            the new servers.
        replicas: how many; default as many as now.
        resource: size of servers that are added; of all servers where they have one template.
        migrate: rank → size: servers to replace by ones of this size; a resource left out stays as it is.
        until: how far to wait; Restarting is reached when the new servers are ready.
    """

    kind: str = ELASTIC_JOB
    replicas: int | None = Field(default=None, ge=1, le=10_000)
    resource: NodeResource = Field(default_factory=NodeResource)
    migrate: dict[int, NodeResource] = Field(default_factory=dict)
    until: ScalePlanPhase = ScalePlanPhase.SUCCEEDED

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind != ELASTIC_JOB:
            if self.migrate:
                raise_problems(
                    [
                        Problem(
                            "migrate", f"servers of a {self.kind} have one template: give resource, for all"
                        )
                    ]
                )
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
    """Create or adopt the plan, or edit the spec; errors as `plans.create_plan`."""
    row = kinds.kind_of(request.kind)
    if row.scale is not None:
        servers = ReplicaResourceSpec(replicas=request.replicas, resource=request.resource)
        return scale_by_spec(cluster, request, row, {names.PS_TYPE: servers})
    if request.kind != ELASTIC_JOB:
        raise InvalidError(f"a {request.kind} has no parameter servers that could be migrated")

    def spec(job: ElasticJob) -> dict[str, Any]:
        scale_plans.check_roles(job, (names.PS_TYPE,), "migrate")
        wanted = {"replicas": request.replicas, "resource": request.resource.to_dict()}
        return {
            "checkpoint": True,
            "replicaResourceSpecs": {
                names.PS_TYPE: {key: value for key, value in wanted.items() if value is not None}
            },
            "migratePods": _pods(cluster, job, request.migrate),
        }

    return scale_plans.create_plan(
        cluster, request, scale_plans.PlanDraft("migrate", spec, request.until), identity
    )


def _pods(cluster: Cluster, job: ElasticJob, migrate: dict[int, NodeResource]) -> list[dict[str, Any]]:
    """The pods that hold these ranks now, as plans name them."""
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
            Problem(f"migrate.{rank}", f"no parameter server of this rank runs; ranks are {has}")
            for rank in missing
        ]
        raise ManifestError(f"migration of ElasticJob {job.key}", problems)
    return [
        {"name": by_rank[str(rank)], "type": names.PS_TYPE, "rankIndex": rank, "resource": size.to_dict()}
        for rank, size in sorted(migrate.items())
    ]


MIGRATE_PS = StageSpec("migrate-ps", MigratePsRequest, begin_migrate_ps)
