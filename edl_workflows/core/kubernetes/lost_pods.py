"""Which pods count as gone although nobody confirms their end: those of lost machines. Pure.

The kubelet of a lost machine reports nothing. Kubernetes marks its pods as not ready, after some minutes it
deletes them, and then it waits for the kubelet: as long as the Node exists, the pods stay, with a
``deletionTimestamp``. Nodes themselves are not read, since masters have no right to; a pod shows enough.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from edl_workflows.core.kubernetes.pod_state import Pod, condition_of, has_ended, marked_disrupted

CONFIRM_SECONDS = 15.0
"""After a pod's grace period, its containers are killed, and the kubelet needs some seconds to report it."""
UNREACHABLE_SECONDS = 60.0
"""Seconds for which a node may be unreachable, by default, until a pod there counts as gone, if something
else can take its place. Kubernetes itself deletes the pod after 300 s."""


def seconds_until_gone(pod: Pod, now: datetime, unreachable: float | None = None) -> float | None:
    """Seconds until a pod counts as gone; 0: it does; None: nothing is known that would make it so.

    A pod that is being deleted counts as gone some seconds after its grace period; at once if its node is
    unreachable and Kubernetes has taken it away for that (DisruptionTarget).

    Args:
        pod: the pod.
        now: the time.
        unreachable: seconds after which a pod counts as gone if its node is unreachable but the pod is not
            deleted yet; None: it does not.
    """
    deleted = pod["metadata"].get("deletionTimestamp")  # the end of its grace period
    since = unreachable_since(pod)
    if (deleted is None and since is None) or has_ended(pod):
        return None
    ends = []
    if deleted is not None:
        taken_away = since is not None and marked_disrupted(pod)
        confirmed = datetime.fromisoformat(deleted) + timedelta(seconds=CONFIRM_SECONDS)
        ends.append(now if taken_away else confirmed)
    if since is not None and unreachable is not None:
        ends.append(since + timedelta(seconds=unreachable))
    return max(0.0, (min(ends) - now).total_seconds()) if ends else None


def is_gone(pod: Pod, now: datetime, unreachable: float | None = None) -> bool:
    """Whether a pod counts as gone, see `seconds_until_gone`."""
    return seconds_until_gone(pod, now, unreachable) == 0


def next_gone(pods: Iterable[Pod], now: datetime, unreachable: float | None = None) -> float | None:
    """Seconds until the next of these pods counts as gone; None if none will."""
    times = (seconds_until_gone(pod, now, unreachable) for pod in pods)
    return min((seconds for seconds in times if seconds), default=None)


def unreachable_since(pod: Pod) -> datetime | None:
    """Since when the node of a running pod does not report; None if it does, as far as the pod shows.

    Then Kubernetes' node controller makes the pod's Ready condition False and leaves ContainersReady True.
    The kubelet itself never reports this combination, unless a readiness gate is closed.
    """
    ready, containers = condition_of(pod, "Ready"), condition_of(pod, "ContainersReady")
    if ready.get("status") not in ("False", "Unknown") or containers.get("status") != "True":
        return None
    gates = (str(gate.get("conditionType")) for gate in pod["spec"].get("readinessGates") or ())
    if any(condition_of(pod, gate).get("status") != "True" for gate in gates):
        return None
    since = ready.get("lastTransitionTime")
    return datetime.fromisoformat(since) if since else None
