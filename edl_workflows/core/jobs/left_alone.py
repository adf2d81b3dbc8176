"""Jobs that another operator of their kind runs, such as Kubeflow's: they are left alone until a user hands
them over. Pure.

The other operator's pods have the names, the owner and the labels that ours have, so a decision would replace
them, and the other operator ours. What tells them apart is `Kind.made_here`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from edl_workflows.core.jobs.actions import Actions, Event, Manifest
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Condition

LEFT_ALONE = "LeftAlone"
"""The type of the condition that is True while a job is left alone."""
REASON = "PodsOfAnotherOperator"
_TAKEN_OVER = "TakenOver"


def is_left_alone(job: Manifest) -> bool:
    """Whether a job is left alone, as its status says. It stays so while the other operator replaces pods,
    and has none."""
    return not _handed_over(job) and _condition(job).get("status") == "True"


def find_foreign_conditions(job: Manifest) -> list[Mapping[str, Any]]:
    """The conditions of a job that say something else than that it is left alone."""
    return [c for c in _conditions(job) if c.get("type") != LEFT_ALONE]


def leave_alone(job: Manifest, evidence: str, now: datetime) -> Actions | None:
    """The decision about a job that another operator runs, and about one that was just handed over; None for
    any other job.

    Args:
        job: the job as it is stored.
        evidence: what another operator did for it, as "made pod a-worker-0"; "" if there is no sign of one.
        now: the time.
    """
    before = _condition(job).get("status")
    if _handed_over(job):
        return _record(job, "False", _TAKEN_OVER, "", now) if before == "True" else None
    if before == "True":
        return Actions()
    if not evidence:
        return None
    message = (
        f"another operator {evidence}, so this controller leaves the job alone. To hand the job over, stop "
        "the other operator and annotate the job with "
        f"{names.TAKE_OVER_ANNOTATION}=true: its pods are then replaced"
    )
    return _record(job, "True", REASON, message, now)


def _record(job: Manifest, status: Any, reason: str, message: str, now: datetime) -> Actions:
    condition = Condition(
        type=LEFT_ALONE,
        status=status,
        reason=reason,
        message=message,
        last_update_time=now,
        last_transition_time=now,
    )
    event = Event(
        "Warning" if status == "True" else "Normal", reason, message or "this controller runs the job"
    )
    # The other operator writes the same list.
    return Actions(
        status={"conditions": [*find_foreign_conditions(job), condition.to_dict()]},
        status_version=str(job["metadata"].get("resourceVersion", "")),
        events=(event,),
    )


def _handed_over(job: Manifest) -> bool:
    annotations = job["metadata"].get("annotations") or {}
    return str(annotations.get(names.TAKE_OVER_ANNOTATION, "")).lower() == "true"


def _condition(job: Manifest) -> Mapping[str, Any]:
    return next((c for c in _conditions(job) if c.get("type") == LEFT_ALONE), {})


def _conditions(job: Manifest) -> list[Mapping[str, Any]]:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return [c for c in conditions if isinstance(c, Mapping)]
