"""What prevents a job from getting its children, for all kinds: names that are taken, creates that are
refused, pods that can't be scheduled. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.kubernetes.objects import Resource

RETRY_SECONDS = 30.0
"""Time until the next decision about an obstacle that only a user can remove: a name that is taken, a refused
pod."""
GARBAGE_SECONDS = 2.0
"""Time until the next decision while objects of an earlier job of this name are being deleted."""
REASONS = frozenset({"NameConflict", "CreateRefused"})
"""Reasons of obstacles that a user must remove."""

_MAX_MESSAGE = 1024


@dataclass(frozen=True)
class Obstacle:
    """Why a job can't have a child now.

    Attributes:
        seconds: time after which to check again.
    """

    reason: str
    message: str
    seconds: float


def find_conflict(
    owner: Resource, observed: Observed, children: Iterable[tuple[str, str]]
) -> Obstacle | None:
    """The first object that has the name of one of the job's children but does not belong to the job.

    Args:
        owner: the job.
        observed: what is observed of it.
        children: (kind, name) of each of its children.
    """
    existing = (observed.find(kind, name) for kind, name in children)
    foreign = [
        manifest for manifest in existing if manifest is not None and not manifests.owned_by(manifest, owner)
    ]
    if not foreign:
        return None
    if earlier := next(
        (manifest for manifest in foreign if manifests.belongs_to_earlier(manifest, owner)), None
    ):
        blocker = f"{earlier['kind']} {manifests.name_of(earlier)}"
        message = f"{blocker} of an earlier job of this name is being deleted"
        return Obstacle("EarlierJob", message, GARBAGE_SECONDS)
    return Obstacle("NameConflict", manifests.describe_conflict(foreign[0], owner), RETRY_SECONDS)


def find_refusal(observed: Observed, create: Iterable[Manifest]) -> Obstacle | None:
    """The first of these creates that the API server refused in the previous round."""
    create_keys = {(manifest["kind"], manifests.name_of(manifest)) for manifest in create}
    for refusal in observed.refused:
        if (refusal.kind, refusal.name) in create_keys:
            message = f"the API server refused {refusal.kind} {refusal.name}: {refusal.message}"
            return Obstacle("CreateRefused", message, RETRY_SECONDS)
    return None


def why_pods_wait(pods: Iterable[Manifest]) -> str:
    """Why the first of these pods that waits can't be scheduled or started; "" if no pod gives a reason."""
    pending = [p for p in pods if manifests.pod_phase(p) == "Pending" and not manifests.is_terminating(p)]
    reasons = [(manifests.name_of(pod), manifests.why_pending(pod)) for pod in pending]
    return next((f"{name}: {reason}" for name, reason in reasons if reason), "")[:_MAX_MESSAGE]
