"""TrainingJob's `Kind` in the registry: how a job is scaled, and how pipelines and kubectl see it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.jobs import cache_fields
from edl_workflows.core.jobs.actions import Manifest, RoleChange, SpecEdit
from edl_workflows.core.jobs.autoscaling import ElasticRole
from edl_workflows.core.jobs.kind import (
    CREATE_VERBS,
    Kind,
    Source,
    job_by_label,
    job_source,
    made_with_label,
)
from edl_workflows.core.jobs.training_job import pods
from edl_workflows.core.jobs.training_job.conversion import to_elastic_job
from edl_workflows.core.jobs.training_job.model import TrainingJob, TrainingJobPhase
from edl_workflows.core.jobs.training_job.reconcile import reconcile
from edl_workflows.core.jobs.training_job.types import GPU, LEGACY_GPU, TrainingRole
from edl_workflows.core.jobs.view import JobPhase, JobView, view_of
from edl_workflows.core.kubernetes import api, names
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.core.schemas.definition import CrdColumn, CrdOptions

_TRAINER = ".status.replicaStatuses.trainer"

_CRD = CrdOptions(
    singular="trainingjob",
    short_names=("tj",),
    columns=(
        CrdColumn("Phase", "string", ".status.phase"),
        CrdColumn("Wanted", "integer", ".status.parallelism"),
        CrdColumn("Trainers", "integer", f"{_TRAINER}.active"),
        CrdColumn("Pservers", "integer", ".status.replicaStatuses.pserver.active"),
        CrdColumn("Reason", "string", ".status.reason", priority=1),
        CrdColumn("Message", "string", ".status.message", priority=1),
        CrdColumn("Age", "date", ".metadata.creationTimestamp"),
    ),
    scale=(".spec.trainer.parallelism", f"{_TRAINER}.active", f"{_TRAINER}.labelSelector"),
)


def view(job: TrainingJob) -> JobView:
    """Map a job to its `JobView`."""
    return view_of(job, {TrainingJobPhase.CREATING: JobPhase.PENDING})


_OTHER_KINDS = {names.PS_TYPE: TrainingRole.PSERVER, names.WORKER_TYPE: TrainingRole.TRAINER}
"""Other kinds' names for the roles. Stages such as the migration of parameter servers use these for every
kind.
"""


def scale(job: TrainingJob, role_changes: Mapping[str, RoleChange]) -> SpecEdit:
    """The edit that gives roles these replicas or resources; other roles stay as they are. New resources of
    pservers make a new cluster; those of trainers apply to pods made from now on.

    Raises:
        ManifestError: the job has no such role, or its bounds do not allow the number.
    """
    counts = job.spec.counts
    role_changes = {str(_OTHER_KINDS.get(role, role)): change for role, change in role_changes.items()}
    if problems := [
        problem for role, change in role_changes.items() for problem in _scale_problems(job, role, change)
    ]:
        raise ManifestError(f"change of TrainingJob {job.key}", problems)
    changes = {TrainingRole(role): change for role, change in role_changes.items()}
    patch = {str(role): _change(job, role, change) for role, change in changes.items()}
    counts |= {role: change.replicas for role, change in changes.items() if change.replicas is not None}
    return SpecEdit(patch, sum(counts.values()))


def elastic_role(job: TrainingJob) -> ElasticRole | None:
    """The job's trainers, within ``min-instance`` and ``max-instance``; None once a trainer has succeeded,
    because the job is then ending.

    Pservers are not autoscaled, as in Paddle EDL.
    """
    if _completed(job):
        return None
    trainer = job.spec.trainer
    low, high = trainer.bounds
    asked = trainer.resources.limits | trainer.resources.requests
    requests = {GPU if name == LEGACY_GPU else name: parse_quantity(text) for name, text in asked.items()}
    template = job.spec.template.get("spec") or {}
    placement = {
        "nodeSelector": job.spec.node_selector or job.spec.node_selector_lower,
        "tolerations": template.get("tolerations") or [],
        "affinity": template.get("affinity") or {},
    }
    return ElasticRole(
        str(TrainingRole.TRAINER), low, high, trainer.desired, requests, placement, bounded=True
    )


def _scale_problems(job: TrainingJob, role: str, change: RoleChange) -> Iterator[Problem]:
    has = {str(name) for name in job.spec.counts}
    path = f"replicas.{role}"
    if role not in has:
        yield Problem(path, f"the job has no such role; it has {', '.join(sorted(has))}")
    elif role == TrainingRole.MASTER and change.replicas not in (None, 1):
        yield Problem(path, f"a job has one master (got {change.replicas})")
    elif role == TrainingRole.PSERVER and change.replicas is not None and change.replicas < 1:
        yield Problem(path, f"at least one pserver is needed (got {change.replicas})")
    elif role == TrainingRole.TRAINER and change.replicas is not None:
        low, high = job.spec.trainer.bounds
        if not low <= change.replicas <= high:
            message = f"must be from {low} (min-instance) to {high} (max-instance), got {change.replicas}"
            yield Problem(path, message)
        elif _too_late(job) and change.replicas != job.status.parallelism:
            rest = f"it ends with its {job.status.parallelism}"
            message = f"a trainer has succeeded, and the job is not fault_tolerant: {rest}"
            yield Problem(path, message)


def _too_late(job: TrainingJob) -> bool:
    """Whether the controller would ignore a changed number of trainers, see `TrainingJobFacts.of`."""
    return not job.spec.fault_tolerant and _completed(job)


def _completed(job: TrainingJob) -> bool:
    """Whether a trainer has succeeded."""
    counts = job.status.replica_statuses.get(TrainingRole.TRAINER)
    return counts is not None and bool(counts.completed)


def _change(job: TrainingJob, role: TrainingRole, change: RoleChange) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    if change.replicas is not None and role is TrainingRole.TRAINER:
        patch["parallelism"] = change.replicas
    if change.replicas is not None and role is TrainingRole.PSERVER and job.spec.pserver is not None:
        patch["min-instance"] = change.replicas
        if job.spec.pserver.max_instance is not None:
            patch["max-instance"] = max(change.replicas, job.spec.pserver.max_instance)
    if change.resources:
        patch["resources"] = {part: dict(change.resources) for part in ("requests", "limits")}
    return patch


def _owned(resource: ApiResource, keep: Callable[[Manifest], dict[str, Any]]) -> Source:
    return Source(
        resource, job_by_label(pods.JOB_LABEL), pods.JOB_LABEL, (("", (*CREATE_VERBS, "delete")),), keep
    )


TRAINING_JOB = Kind(
    source=job_source(api.TRAINING_JOBS, "delete"),
    model=TrainingJob,
    reconcile=reconcile,
    observes=(_owned(api.PODS, cache_fields.keep_pod), _owned(api.SERVICES, cache_fields.keep_head)),
    crd=_CRD,
    view=view,
    labels=(pods.JOB_LABEL, pods.ROLE_LABEL, pods.INDEX_LABEL),
    failed=TrainingJobPhase.FAILED,
    scale=scale,
    elastic=elastic_role,
    made_here=made_with_label(pods.CLUSTER_LABEL),
    conversions=((api.ELASTIC_JOBS.kind, to_elastic_job),),
)
