"""The common parts of the registry for Kubeflow's kinds."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.jobs import cache_fields
from edl_workflows.core.jobs.actions import Manifest, RoleChange, SpecEdit
from edl_workflows.core.jobs.autoscaling import ElasticRole
from edl_workflows.core.jobs.conversion import ConvertedJob
from edl_workflows.core.jobs.kind import (
    CREATE_VERBS,
    Kind,
    Source,
    job_by_label,
    job_source,
    made_with_label,
)
from edl_workflows.core.jobs.kubeflow import pods
from edl_workflows.core.jobs.kubeflow.model import (
    KubeflowJob,
    KubeflowPhase,
    KubeflowReplicaSpec,
    container_of,
)
from edl_workflows.core.jobs.kubeflow.pods import KubeflowFramework
from edl_workflows.core.jobs.kubeflow.reconcile import reconcile
from edl_workflows.core.jobs.view import JobPhase, JobView, view_of
from edl_workflows.core.kubernetes import api
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.core.schemas.definition import CrdColumn, CrdOptions

_job_of = job_by_label(pods.JOB_LABEL)


def kubeflow_crd(
    resource: ApiResource,
    specs_key: str,
    short_name: str,
    *columns: CrdColumn,
    also_served: tuple[str, ...] = (),
) -> CrdOptions:
    """The CustomResourceDefinition of one of Kubeflow's kinds, apart from its schema.

    Args:
        resource: the kind.
        specs_key: the spec's field with the replicas by type; the scale subresource scales its Worker.
        short_name: for ``kubectl get``.
        columns: the kind's own columns, which follow those for the phase and the workers.
        also_served: served versions besides the stored one.
    """
    worker = ".status.replicaStatuses.Worker"
    return CrdOptions(
        singular=resource.kind.lower(),
        short_names=(short_name,),
        columns=(
            CrdColumn("Phase", "string", ".status.phase"),
            CrdColumn("Workers", "integer", f"{worker}.active"),
            *columns,
            CrdColumn("Reason", "string", ".status.reason", priority=1),
            CrdColumn("Message", "string", ".status.message", priority=1),
            CrdColumn("Age", "date", ".metadata.creationTimestamp"),
        ),
        scale=(f".spec.{specs_key}.Worker.replicas", f"{worker}.active", f"{worker}.labelSelector"),
        also_served=also_served,
    )


def kubeflow_kind(
    resource: ApiResource,
    model: type[KubeflowJob],
    framework: KubeflowFramework,
    crd: CrdOptions,
    *,
    elastic: Callable[[Any], ElasticRole | None] | None = None,
    conversions: tuple[tuple[str, Callable[[Any], ConvertedJob]], ...] = (),
) -> Kind:
    """The `Kind` of one of Kubeflow's kinds."""
    selector = f"{pods.OPERATOR_LABEL}={framework.operator}"

    def owned(child: ApiResource, keep: Callable[[Manifest], dict[str, Any]]) -> Source:
        return Source(child, _job_of, selector, (("", (*CREATE_VERBS, "delete")),), keep)

    return Kind(
        source=job_source(resource, "delete"),
        model=model,
        reconcile=partial(reconcile, framework),
        observes=(owned(api.PODS, cache_fields.keep_pod), owned(api.SERVICES, cache_fields.keep_head)),
        crd=crd,
        view=view,
        makes=(Source(api.POD_GROUPS, _job_of, rights=(("", ("list", "create", "patch")),)),),
        labels=(pods.JOB_LABEL, pods.TYPE_LABEL, pods.INDEX_LABEL),
        suspend=("runPolicy", "suspend"),
        scale=partial(scale, framework),
        elastic=elastic,
        made_here=made_with_label(pods.CLUSTER_LABEL),
        conversions=conversions,
    )


def view(job: KubeflowJob) -> JobView:
    """Map a job to its `JobView`."""
    return view_of(job, {KubeflowPhase.CREATED: JobPhase.PENDING})


def scale(framework: KubeflowFramework, job: KubeflowJob, role_changes: Mapping[str, RoleChange]) -> SpecEdit:
    """The edit that gives the job these replicas by type, in any of the type's spellings; other types keep
    theirs.

    Raises:
        ManifestError: the job has no such type.
    """
    specs = job.spec.replica_specs
    keys = {spelling: key for key in specs for spelling in job.spec.replica_type(key).spellings}
    chosen = {role: keys.get(role.lower()) for role in role_changes}
    if unknown := [role for role, key in chosen.items() if key is None]:
        has = ", ".join(sorted(specs))
        problems = [
            Problem(f"replicas.{role}", f"the job has no such type; it has {has}") for role in unknown
        ]
        raise ManifestError(f"change of {job.kind} {job.key}", problems)
    changes = {key: role_changes[role] for role, key in chosen.items() if key is not None}
    patch = {key: _change(framework, specs[key], change) for key, change in changes.items()}
    counts = {key: spec.replicas for key, spec in specs.items()}
    counts |= {key: change.replicas for key, change in changes.items() if change.replicas is not None}
    return SpecEdit({job.spec.specs_key(): patch}, sum(counts.values()))


def _change(framework: KubeflowFramework, spec: KubeflowReplicaSpec, change: RoleChange) -> dict[str, Any]:
    patch: dict[str, Any] = {} if change.replicas is None else {"replicas": change.replicas}
    if change.resources:
        template = copy.deepcopy(spec.template)
        container = container_of(template, framework.container)
        own = container.get("resources") or {}
        container["resources"] = own | {
            part: (own.get(part) or {}) | dict(change.resources) for part in ("requests", "limits")
        }
        patch["template"] = {"spec": {"containers": template["spec"]["containers"]}}
    return patch
