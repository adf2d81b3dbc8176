"""TrainingJob's row of the registry."""

from collections.abc import Callable
from typing import Any

from edl_workflows.jobs import api, cache_fields
from edl_workflows.jobs.actions import Manifest
from edl_workflows.jobs.api import ApiResource
from edl_workflows.jobs.kind import MADE, Kind, Source, job_by_label, job_source
from edl_workflows.jobs.training_job import pods, scale
from edl_workflows.jobs.training_job.crd import OPTIONS
from edl_workflows.jobs.training_job.model import TrainingJob, TrainingJobPhase
from edl_workflows.jobs.training_job.reconcile import reconcile
from edl_workflows.jobs.training_job.view import view


def _owned(resource: ApiResource, keep: Callable[[Manifest], dict[str, Any]]) -> Source:
    return Source(resource, job_by_label(pods.JOB_LABEL), pods.JOB_LABEL, (("", (*MADE, "delete")),), keep)


TRAINING_JOB = Kind(
    source=job_source(api.TRAINING_JOBS, "delete"),
    model=TrainingJob,
    reconcile=reconcile,
    observes=(_owned(api.PODS, cache_fields.keep_pod), _owned(api.SERVICES, cache_fields.keep_head)),
    crd=OPTIONS,
    view=view,
    labels=(pods.JOB_LABEL, pods.ROLE_LABEL, pods.INDEX_LABEL),
    failed=TrainingJobPhase.FAILED,
    scale=scale.scale,
    elastic=scale.elastic,
)
