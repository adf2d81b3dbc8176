"""Which changes of an object a wait must evaluate: progress alone changes no result before the step that is
waited for. Pure."""

from collections.abc import Mapping
from typing import Any

from edl_workflows.core.jobs import cache_fields
from edl_workflows.core.jobs.elastic_job.awaited_steps import without_waiters
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.runtime.kube.resources import Object, version_of

_PROGRESS = ("progress", "goodput", "history", "checkpoint", "parameterServers", "hang", "profilings")
"""Fields of a job's status that change while it trains. A wait needs them when it ends, and for a line about
the newest state now and then."""


def is_news(handle: Handle, new: Object, old: Object) -> bool:
    """Whether a change can end a wait, or is worth a line of its log.

    Args:
        handle: what is waited for.
        new: the state of the object.
        old: the state before.
    """
    if version_of(old) < handle.version <= version_of(new):  # the wait ignores the states before
        return True
    progress = _progress_of(new)
    step = handle.goal.step if isinstance(handle.goal, JobGoal) else None
    if step is not None and (progress.get("step") or 0) >= step:
        return True
    if _has_run(progress) != _has_run(_progress_of(old)):
        return True
    # The registration of a waiter is no news to the others, nor to itself.
    return cache_fields.differ(without_waiters(new), without_waiters(old), _PROGRESS)


def _progress_of(job: Object) -> Mapping[str, Any]:
    progress = (job.get("status") or {}).get("progress")
    return progress if isinstance(progress, Mapping) else {}


def _has_run(progress: Mapping[str, Any]) -> bool:
    """Whether the job has begun to train, so that it is no longer queued."""
    return any(progress.get(field) for field in ("step", "records", "clusterVersion"))
