"""The object that a stage observes: the view of a job of any kind, or a ScalePlan."""

from collections.abc import Mapping
from typing import Any

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase, JobView

ObservedObject = JobView | ScalePlan | None


def read_object(kind: str, manifest: Mapping[str, Any] | None) -> ObservedObject:
    """The view of a job, or the ScalePlan, of a manifest; None without a manifest.

    An object whose spec does not validate is read, too: the API server has admitted it, and a job reports it
    by its reason InvalidSpec.

    Raises:
        InvalidError: this package does not know the kind.
    """
    if manifest is None:
        return None
    job_kind = kinds.kind_of(kind)
    if job_kind.view is not None:
        return job_kind.view_stored(manifest)
    return ScalePlan.read_stored(manifest)[0]


def uid_of(seen: JobView | ScalePlan) -> str:
    """The uid of the object."""
    return seen.uid if isinstance(seen, JobView) else seen.metadata.uid


def has_ended(seen: JobView | ScalePlan) -> bool:
    """Whether its phase is final."""
    if isinstance(seen, JobView):
        return seen.phase.final
    return seen.status.phase is not None and seen.status.phase.final


def has_failed(seen: JobView | ScalePlan) -> bool:
    """Whether its phase is Failed."""
    if isinstance(seen, JobView):
        return seen.phase is JobPhase.FAILED
    return seen.status.phase is ScalePlanPhase.FAILED
