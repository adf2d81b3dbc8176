"""TFJob's row of the registry."""

from collections.abc import Callable
from typing import Any

from edl_workflows.jobs import api, cache_fields
from edl_workflows.jobs.actions import Manifest
from edl_workflows.jobs.api import ApiResource
from edl_workflows.jobs.kind import MADE, Kind, Source, job_by_label, job_source
from edl_workflows.jobs.tf_job import pods
from edl_workflows.jobs.tf_job.crd import OPTIONS
from edl_workflows.jobs.tf_job.model import TFJob
from edl_workflows.jobs.tf_job.reconcile import reconcile
from edl_workflows.jobs.tf_job.scale import scale
from edl_workflows.jobs.tf_job.view import view

_by_job_label = job_by_label(pods.JOB_LABEL)


def _owned(resource: ApiResource, keep: Callable[[Manifest], dict[str, Any]]) -> Source:
    selector = f"{pods.OPERATOR_LABEL}={pods.OPERATOR}"
    return Source(resource, _by_job_label, selector, (("", (*MADE, "delete")),), keep)


TF_JOB = Kind(
    source=job_source(api.TF_JOBS, "delete"),
    model=TFJob,
    reconcile=reconcile,
    observes=(_owned(api.PODS, cache_fields.keep_pod), _owned(api.SERVICES, cache_fields.keep_head)),
    crd=OPTIONS,
    view=view,
    makes=(Source(api.POD_GROUPS, _by_job_label, rights=(("", ("list", "create", "patch")),)),),
    labels=(pods.JOB_LABEL, pods.TYPE_LABEL, pods.INDEX_LABEL),
    suspend=("runPolicy", "suspend"),
    scale=scale,
)
