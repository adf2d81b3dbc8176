"""ElasticJob's `Kind` in the registry: what decisions read, and how pipelines and kubectl see a job."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic.alias_generators import to_camel

from edl_workflows.core.jobs import cache_fields, manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.jobs.elastic_job import scaling
from edl_workflows.core.jobs.elastic_job.awaited_steps import without_waiters
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase, ElasticJobStatus
from edl_workflows.core.jobs.elastic_job.reconcile import reconcile
from edl_workflows.core.jobs.elastic_job.status import OWNED
from edl_workflows.core.jobs.elastic_job.time_spent import SPENT, read_spent, sum_spent
from edl_workflows.core.jobs.kind import CREATE_VERBS, Kind, Source, job_by_label, job_source
from edl_workflows.core.jobs.view import Checkpoint, FailedPod, JobPhase, JobView, Progress, view_of
from edl_workflows.core.kubernetes import api, names
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.core.schemas.definition import CrdColumn, CrdOptions

_WORKER = ".status.replicaStatuses.worker"

_CRD = CrdOptions(
    singular="elasticjob",
    short_names=("ej",),
    columns=(
        CrdColumn("Phase", "string", ".status.phase"),
        CrdColumn("Step", "integer", ".status.progress.step"),
        CrdColumn("Measured", "date", ".status.progress.time"),
        CrdColumn("Workers", "integer", f"{_WORKER}.active"),
        CrdColumn("PS", "integer", ".status.replicaStatuses.ps.active"),
        CrdColumn("Reason", "string", ".status.reason", priority=1),
        CrdColumn("Message", "string", ".status.message", priority=1),
        CrdColumn("Age", "date", ".metadata.creationTimestamp"),
    ),
    scale=(".spec.replicaSpecs.worker.replicas", f"{_WORKER}.active", f"{_WORKER}.labelSelector"),
)


def view(job: ElasticJob) -> JobView:
    """Map a job to its `JobView`, with what its master says of training."""
    status = job.status
    general = view_of(job, {ElasticJobPhase.CREATED: JobPhase.PENDING})
    training = general.replicas.keys() - {names.MASTER_TYPE}  # the master serves training, it does not train
    progress = _progress(status)
    return replace(
        general,
        # The phase is Running as soon as the master runs; its workers may still wait for machines.
        has_run=bool(
            progress.step or progress.records or (status.progress and status.progress.cluster_version)
        ),
        replicas={role: counts for role, counts in general.replicas.items() if role in training},
        progress=progress,
        checkpoint=Checkpoint(status.checkpoint.uri, status.checkpoint.step) if status.checkpoint else None,
        warnings=tuple(status.warnings),
        planned=status.autoscaling,
        plan=status.scale_plan,
        restarts=tuple(status.restarts.recent) if status.restarts else (),
        failed_pod=_failed_pod(status),
        result=status.result,
    )


def _progress(status: ElasticJobStatus) -> Progress:
    if status.progress is None:
        return Progress()
    progress = status.progress
    return Progress(
        progress.step,
        progress.records,
        progress.speed,
        progress.records_per_second,
        progress.records_total,
        dict(progress.metrics),
    )


def _failed_pod(status: ElasticJobStatus) -> FailedPod | None:
    failure = status.failure or {}
    return FailedPod(failure["pod"], failure.get("lastLines", "")) if failure.get("pod") else None


_by_job_label = job_by_label(names.JOB_LABEL)


def _by_owner_job(manifest: Manifest) -> str:
    # As ScalePlan.job, but for manifests that may not validate. A plan that names no job forms a group of its
    # own: no job's name has a slash.
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    owner = (manifest.get("spec") or {}).get("ownerJob") or ""
    job = owner or labels.get(names.JOB_LABEL, "") or labels.get(names.LEGACY_JOB_LABEL, "")
    return job or f"/{metadata['name']}"


def _owned(
    resource: ApiResource, *verbs: str, keep: Callable[[Manifest], dict[str, Any]] = cache_fields.keep_head
) -> Source:
    return Source(resource, _by_job_label, names.JOB_LABEL, (("", (*CREATE_VERBS, *verbs)),), keep)


def _made_here(pod: Manifest, observed: Observed) -> bool:
    """Whether the pod's job has a token or stored state, which are created before its first pod. DLRover's
    operator creates neither."""
    job = manifests.owner_of(pod).get("uid")
    stored = (*observed.of(api.SECRETS.kind), *observed.of(api.CONFIG_MAPS.kind))
    return any(manifests.owner_of(child).get("uid") == job for child in stored)


_STATUS = frozenset(
    {*map(to_camel, OWNED), "replacements", "progressPeriodSeconds", "checkpoint", "failure", "warnings"}
)
"""The fields of a job's status that decisions read. The master writes the last three, and others more often.
"""
_COUNTED = ("usage", "restarts", SPENT)
"""The fields of a kept job's status that only the account of its usage and the metrics read."""


def _keep_job(job: Manifest) -> dict[str, Any]:
    """A job without what only people and pipelines read, progress, speeds, the time account but for its sums,
    and without its waiters."""
    kept = cache_fields.keep_status(without_waiters(job), _STATUS.__contains__)
    status = job.get("status") or {}
    if status.get("usage"):
        kept["status"]["usage"] = status["usage"]
    # A job's master may write null into these fields.
    if status.get("restarts"):
        kept["status"]["restarts"] = {"counts": count_restarts(job)}
    if status.get("goodput") and (spent := sum_spent(status["goodput"])):
        kept["status"][SPENT] = spent
    return kept


def count_restarts(job: Manifest) -> Mapping[str, int]:
    """How often anything of a job was restarted, by cause, as its master counts."""
    restarts = (job.get("status") or {}).get("restarts")
    counts = restarts.get("counts") if isinstance(restarts, dict) else None
    return counts if isinstance(counts, dict) else {}


# The time of the last save is read when pods are told to end: a new checkpoint asks for no decision. The
# period of progress is for the master.
ELASTIC_JOBS = job_source(
    api.ELASTIC_JOBS, "delete", keep=_keep_job, silent=("checkpoint", "progressPeriodSeconds", *_COUNTED)
)
SCALE_PLANS = Source(
    api.SCALE_PLANS,
    _by_owner_job,
    rights=(("", (*CREATE_VERBS, "patch", "delete")), ("status", ("patch",))),
)
PODS = _owned(api.PODS, "delete", keep=cache_fields.keep_pod)
SERVICES = _owned(api.SERVICES, "delete")
SECRETS = _owned(api.SECRETS)
CONFIG_MAPS = _owned(api.CONFIG_MAPS)
SERVICE_ACCOUNTS = _owned(api.SERVICE_ACCOUNTS)
ROLES = _owned(api.ROLES, "patch", keep=cache_fields.keep_whole)
ROLE_BINDINGS = _owned(api.ROLE_BINDINGS)


ELASTIC_JOB = Kind(
    source=ELASTIC_JOBS,
    model=ElasticJob,
    reconcile=reconcile,
    observes=(
        PODS,
        SERVICES,
        SECRETS,
        CONFIG_MAPS,
        SERVICE_ACCOUNTS,
        ROLES,
        ROLE_BINDINGS,
        SCALE_PLANS,
    ),
    crd=_CRD,
    view=view,
    elastic=scaling.elastic_role,
    made_here=_made_here,
    spent=read_spent,
    restarts=count_restarts,
)
