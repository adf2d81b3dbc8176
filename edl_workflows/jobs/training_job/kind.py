"""TrainingJob's row of the registry."""

from collections.abc import Callable
from typing import Any

from edl_workflows.jobs import api, kept
from edl_workflows.jobs.actions import Manifest
from edl_workflows.jobs.api import ApiResource
from edl_workflows.jobs.kind import MADE, Kind, Source, by_label, jobs
from edl_workflows.jobs.training_job import pods, scale
from edl_workflows.jobs.training_job.crd import OPTIONS
from edl_workflows.jobs.training_job.model import Phase, TrainingJob
from edl_workflows.jobs.training_job.reconcile import reconcile
from edl_workflows.jobs.training_job.view import view


def _owned(resource: ApiResource, keep: Callable[[Manifest], dict[str, Any]]) -> Source:
    return Source(resource, by_label(pods.JOB_LABEL), pods.JOB_LABEL, (("", (*MADE, "delete")),), keep)


TRAINING_JOB = Kind(
    source=jobs(api.TRAINING_JOBS, "delete"),
    model=TrainingJob,
    reconcile=reconcile,
    observes=(_owned(api.PODS, kept.pod), _owned(api.SERVICES, kept.head)),
    crd=OPTIONS,
    view=view,
    labels=(pods.JOB_LABEL, pods.ROLE_LABEL, pods.INDEX_LABEL),
    failed=Phase.FAILED,
    scale=scale.scale,
    elastic=scale.elastic,
)
