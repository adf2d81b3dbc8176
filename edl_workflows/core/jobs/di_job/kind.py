"""DIJob's `Kind` in the registry, and how pipelines and kubectl see a job."""

from typing import Any

from edl_workflows.core.jobs import cache_fields
from edl_workflows.core.jobs.actions import Manifest
from edl_workflows.core.jobs.di_job import elastic, pods
from edl_workflows.core.jobs.di_job.model import DIJob, DIJobPhase
from edl_workflows.core.jobs.di_job.reconcile import reconcile
from edl_workflows.core.jobs.kind import (
    CREATE_VERBS,
    Kind,
    Source,
    job_by_label,
    job_source,
    made_with_label,
)
from edl_workflows.core.jobs.view import JobPhase, JobView, view_of
from edl_workflows.core.kubernetes import api
from edl_workflows.core.schemas.definition import CrdColumn, CrdOptions

_CRD = CrdOptions(
    singular="dijob",
    short_names=("dijob",),
    columns=(
        CrdColumn("Phase", "string", ".status.phase"),
        CrdColumn("ReadyReplicas", "integer", ".status.readyReplicas"),
        CrdColumn("Replicas", "integer", ".status.replicas"),
        CrdColumn("Restarts", "integer", ".status.restarts"),
        CrdColumn("Reschedules", "integer", ".status.reschedules"),
        CrdColumn("Reason", "string", ".status.reason", priority=1),
        CrdColumn("Message", "string", ".status.message", priority=1),
        CrdColumn("Age", "date", ".metadata.creationTimestamp"),
    ),
)


def view(job: DIJob) -> JobView:
    """Map a job to its `JobView`. Starting is Pending until the job has run once, then Restarting."""
    has_run = any(condition.type == DIJobPhase.RUNNING.condition for condition in job.status.conditions)
    starting = JobPhase.RESTARTING if has_run else JobPhase.PENDING
    return view_of(job, {DIJobPhase.STARTING: starting, DIJobPhase.RESCHEDULING: JobPhase.SCALING})


_by_job_label = job_by_label(pods.JOB_LABEL)
_SELECTOR = f"{pods.OPERATOR_LABEL}={pods.OPERATOR}"
_RIGHTS = (("", (*CREATE_VERBS, "delete")),)


def _pod(obj: Manifest) -> dict[str, Any]:
    """As `cache_fields.keep_pod`, with the init containers: if one of them fails, no other container has an
    exit code.
    """
    pod = cache_fields.keep_pod(obj)
    statuses = (obj.get("status") or {}).get("initContainerStatuses") or ()
    if statuses:
        pod["status"]["initContainerStatuses"] = [
            {"name": c.get("name"), "state": c.get("state") or {}} for c in statuses
        ]
    return pod


DI_JOB = Kind(
    source=job_source(
        api.DI_JOBS, "delete", silent=("profilings",)
    ),  # the allocator reads them in its rounds
    model=DIJob,
    reconcile=reconcile,
    observes=(
        Source(api.PODS, _by_job_label, _SELECTOR, _RIGHTS, _pod),
        Source(api.SERVICES, _by_job_label, _SELECTOR, _RIGHTS, cache_fields.keep_head),
        Source(api.SECRETS, _by_job_label, _SELECTOR, (("", CREATE_VERBS),), cache_fields.keep_head),
    ),
    crd=_CRD,
    view=view,
    labels=(pods.JOB_LABEL, pods.TASK_LABEL, pods.INDEX_LABEL),
    scale=elastic.scale,
    elastic=elastic.elastic_role,
    made_here=made_with_label(pods.PLACE_LABEL),
)
