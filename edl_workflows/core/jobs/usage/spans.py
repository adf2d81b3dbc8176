"""What one pod held of its node, and from when to when, as the pod itself shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from edl_workflows.core.jobs import manifests
from edl_workflows.core.kubernetes import demand, names, pod_state

GIBIBYTE = 2.0**30
_SIGNALS = 128
"""Larger exit codes are those of programs that a signal ended."""

Pod = Mapping[str, Any]


class HeldAmounts(NamedTuple):
    """Amounts of the counted resources: cores, gibibytes, and pieces of all resources whose name ends in
    ``/gpu``."""

    cpu: float = 0.0
    memory: float = 0.0
    gpu: float = 0.0


@dataclass(frozen=True)
class PodSpan:
    """The time for which a pod held its resources, in Unix seconds.

    Attributes:
        amounts: what it holds.
        bound: when it was bound to its node.
        started: when its program began, at the last time; None if it has not begun.
        ended: when it held nothing any more; None while it does.
        failed: whether its program failed.
        restarted: whether its program was begun several times.
        trains: whether it trains; not if it is a job's master.
    """

    amounts: HeldAmounts
    bound: float
    started: float | None = None
    ended: float | None = None
    failed: bool = False
    restarted: bool = False
    trains: bool = True


def held_amounts(pod: Pod) -> HeldAmounts:
    """What a pod holds of its node: its requests."""
    requests = demand.pod_requests(pod.get("spec") or {})
    gpus = sum(amount for name, amount in requests.items() if name.endswith("/gpu"))
    return HeldAmounts(requests.get("cpu", 0.0), requests.get("memory", 0.0) / GIBIBYTE, gpus)


def read_span(pod: Pod) -> PodSpan | None:
    """The span of a pod, either whole or as the controller keeps it; None if it was never bound.

    A pod whose end the kubelet could not report ended when it became unready.
    """
    bound = _when(pod_state.condition_of(pod, "PodScheduled"), "True")
    if bound is None:
        return None
    own = pod_state.own_status(pod)
    state = own.get("state") or {}
    begun = state.get("running") or state.get("terminated") or {}
    ended = _end_of(pod, bound) if pod_state.has_stopped(pod) else None
    return PodSpan(
        pod["held"] if "held" in pod else held_amounts(pod),
        bound,
        _unix(begun.get("startedAt")),
        ended,
        failed=pod_state.pod_phase(pod) == "Failed" and not _is_unneeded(pod),
        restarted=bool(own.get("restartCount")),
        trains=manifests.get_label(pod, names.REPLICA_TYPE_LABEL) != names.MASTER_TYPE,
    )


def _is_unneeded(pod: Pod) -> bool:
    """Whether somebody has deleted a pod, so that its program ended with the exit code of SIGTERM; evictions
    and preemptions, which have a condition, are left out."""
    return manifests.is_terminating(pod) and not pod_state.marked_disrupted(pod)


def failure_cause(pod: Pod) -> str:
    """Why a failed pod failed: Disrupted (evicted, preempted, or its machine was lost), OOMKilled, Killed (by
    a signal) or Error."""
    end = pod_state.own_end(pod)
    if pod_state.marked_disrupted(pod):
        return "Disrupted"
    if end.get("reason") == "OOMKilled":
        return "OOMKilled"
    return "Killed" if int(end.get("exitCode") or 0) > _SIGNALS else "Error"


def _end_of(pod: Pod, bound: float) -> float:
    ends = [_unix(pod_state.terminated_state(s).get("finishedAt")) for s in pod_state.container_statuses(pod)]
    unready = _when(pod_state.condition_of(pod, "Ready"), "False")
    return max([bound, *(end for end in ends if end is not None)] if any(ends) else [bound, unready or bound])


def _when(condition: Mapping[str, Any], status: str) -> float | None:
    """Since when a condition has a status; None if it has another one."""
    return _unix(condition.get("lastTransitionTime")) if condition.get("status") == status else None


def _unix(text: Any) -> float | None:
    moment = text if isinstance(text, datetime) else manifests.parse_time(text)
    return moment.timestamp() if moment is not None else None
