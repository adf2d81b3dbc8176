"""Manifests of manual plans: the changes that pipelines and the cluster's autoscaler ask a job's master to
make. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.manifests import owner_reference
from edl_workflows.core.jobs.scale_plan.model import KIND, ScalePlan
from edl_workflows.core.kubernetes import names


def manual_plan(job: ElasticJob, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A plan for a job. It is deleted with the job.

    Args:
        job: to be changed.
        name: of the plan.
        spec: the plan's fields except ``ownerJob``.

    Raises:
        ManifestError: the plan would be invalid.
    """
    labels = {names.JOB_LABEL: job.metadata.name, names.SCALE_TYPE_LABEL: names.SCALE_MANUAL}
    manifest = {
        "apiVersion": job.api_version,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace or "default",
            "labels": labels,
            # The plan is deleted with the job, but the job is not its controlling owner.
            "ownerReferences": [owner_reference(job, controller=False)],
        },
        "spec": {"ownerJob": job.metadata.name, **spec},
    }
    ScalePlan.parse(manifest)
    return manifest


def next_autoscale_name(job: str, taken: Iterable[str]) -> str:
    """Name of the autoscaler's next plan. The same existing plans always give the same name.

    Args:
        job: the job's name.
        taken: names of the job's plans, finished ones too.
    """
    prefix = f"{job}-autoscale-"
    tails = (name.removeprefix(prefix) for name in taken if name.startswith(prefix))
    return f"{prefix}{max((int(tail) for tail in tails if tail.isdecimal()), default=0) + 1}"
