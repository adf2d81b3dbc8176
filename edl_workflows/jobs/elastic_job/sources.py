"""What decisions about an ElasticJob and its ScalePlans look at."""

from collections.abc import Callable
from typing import Any

from edl_workflows.jobs import api, cache_fields, names
from edl_workflows.jobs.actions import Manifest
from edl_workflows.jobs.api import ApiResource
from edl_workflows.jobs.kind import MADE, Source, job_by_label, job_source

_by_job_label = job_by_label(names.JOB_LABEL)


def _by_owner_job(manifest: Manifest) -> str:
    # As ScalePlan.job, but for manifests that may not validate. A plan that names no job is decided on alone:
    # no job's name # has a slash.
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    owner = (manifest.get("spec") or {}).get("ownerJob") or ""
    job = owner or labels.get(names.JOB_LABEL, "") or labels.get(names.LEGACY_JOB_LABEL, "")
    return job or f"/{metadata['name']}"


def _owned(
    resource: ApiResource, *verbs: str, keep: Callable[[Manifest], dict[str, Any]] = cache_fields.keep_head
) -> Source:
    return Source(resource, _by_job_label, names.JOB_LABEL, (("", (*MADE, *verbs)),), keep)


ELASTIC_JOBS = job_source(api.ELASTIC_JOBS, "delete")
SCALE_PLANS = Source(
    api.SCALE_PLANS,
    _by_owner_job,
    rights=(("", (*MADE, "patch", "delete")), ("status", ("patch",))),
)
PODS = _owned(api.PODS, "delete", keep=cache_fields.keep_pod)
SERVICES = _owned(api.SERVICES, "delete")
SECRETS = _owned(api.SECRETS)
CONFIG_MAPS = _owned(api.CONFIG_MAPS)
SERVICE_ACCOUNTS = _owned(api.SERVICE_ACCOUNTS)
ROLES = _owned(api.ROLES)
ROLE_BINDINGS = _owned(api.ROLE_BINDINGS)
