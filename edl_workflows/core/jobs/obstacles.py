"""What prevents a job from getting its children, for all kinds: names that are taken, creates that are
refused, pods that can't be scheduled. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Event, Manifest, Observed
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.kubernetes.objects import Resource

RETRY_SECONDS = 30.0
"""Time until the next decision about an obstacle that only a user can remove: a name that is taken, a refused
pod."""
GARBAGE_SECONDS = 2.0
"""Time until the next decision while objects of an earlier job of this name are being deleted."""
LOST = "PodLost"
REPLACED = "ReplacedAgainAndAgain"
"""Reason of a job that waits with a pod whose place had too many in a row."""
REASONS = frozenset({"NameConflict", "CreateRefused", LOST, REPLACED})
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
    """The first of these creates that the API server refused in the previous round, or that comes too
    soon."""
    create_keys = {(manifest["kind"], manifests.name_of(manifest)) for manifest in create}
    for refusal in observed.refused:
        if (refusal.kind, refusal.name) in create_keys:
            message = f"the API server refused {refusal.kind} {refusal.name}: {refusal.message}"
            return Obstacle("CreateRefused", message, RETRY_SECONDS)
    held = [pod for pod in observed.held if ("Pod", pod.name) in create_keys]
    first = min(held, key=lambda pod: pod.seconds, default=None)
    return Obstacle(REPLACED, first.message, first.seconds) if first else None


def find_lost(pods: Sequence[Manifest]) -> Obstacle | None:
    """The first of these pods, which count as gone, but whose names no other pod can have."""
    if not pods:
        return None
    name, namespace = manifests.name_of(pods[0]), pods[0]["metadata"].get("namespace") or "default"
    more = f" ({len(pods)} such pods)" if len(pods) > 1 else ""
    if manifests.waits_for_finalizer(pods[0]):
        message = (
            f"pod {name} is deleted, but a finalizer keeps it, so its name is not free{more}. Whoever set it "
            f"must remove it: see `kubectl get pod {name} --namespace {namespace} --output yaml`"
        )
        return Obstacle(LOST, message, RETRY_SECONDS)
    message = (
        f"pod {name} is being deleted, but its node does not confirm its end, so its name is not free{more}. "
        "Repair the node, or, if no container runs there any more, delete its Node, or the pod with "
        f"`kubectl delete pod {name} --namespace {namespace} --force`"
    )
    return Obstacle(LOST, message, RETRY_SECONDS)


def forced_deletion_event(pod: Manifest) -> Event:
    """The Event about a lost pod that is deleted by force."""
    message = f"pod {manifests.name_of(pod)} is deleted by force: its node does not confirm its end"
    return Event("Warning", LOST, message)


def why_pods_wait(pods: Iterable[Manifest]) -> str:
    """Why the first of these pods that waits can't be scheduled, started or started again; "" if no pod gives
    a reason."""
    pending = [p for p in pods if not pod_state.has_ended(p) and not manifests.is_terminating(p)]
    reasons = [(manifests.name_of(pod), manifests.why_pending(pod)) for pod in pending]
    return next((f"{name}: {reason}" for name, reason in reasons if reason), "")[:_MAX_MESSAGE]
