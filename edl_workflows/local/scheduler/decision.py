"""The scheduling decision as a pure function of the node and the pods.

Messages are kube-scheduler's: "0/1 nodes are available: 1 Insufficient cpu." There is no preemption: a
running pod is never evicted for a waiting one. Pods with a higher priority come first. Among pods of the same
priority older ones come first, as in kube-scheduler, but all pods of a job count as old as its first one, so
that a job that has started gets its other pods before a newer job starts. Masters may use at most half of the
pods that run at once, because a master without workers never ends.

Node affinity works as in kube-scheduler with a single node, where preferences have no effect.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edl_workflows.core.kubernetes.names import MASTER_TYPE, REPLICA_TYPE_LABEL
from edl_workflows.core.kubernetes.node_selector import requirement_holds
from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler.resources import ResourceUnits, pod_units

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def requires_other_pods(affinity: Mapping[str, Any]) -> bool:
    """Whether an affinity requires a placement relative to other pods, which the embedded cluster does not
    support."""
    return any((affinity.get(kind) or {}).get(_REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))


def affinity_admits(affinity: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether the required node affinity admits a pod to a node.

    Args:
        affinity: the pod's affinity.
        name: name of the node, the only field that terms can use.
        labels: labels of the node.
    """
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return True
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return any(_matches(term, name, labels) for term in terms)


def _matches(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether all requirements of a term hold. A term without requirements matches no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not (expressions or fields):
        return False
    return all(requirement_holds(requirement, labels) for requirement in expressions) and all(
        requirement_holds(requirement, {"metadata.name": name}) for requirement in fields
    )


SCHEDULER_NAME = "default-scheduler"
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class SchedulerNode:
    """The scheduler's view of the node.

    Attributes:
        name: for pods' ``spec.nodeName``.
        allocatable: resources that all pods together may request.
        labels: for node selectors.
        unschedulable: whether the node is cordoned.
    """

    name: str
    allocatable: ResourceUnits
    labels: Mapping[str, str]
    unschedulable: bool = False


@dataclass(frozen=True)
class SchedulingDecision:
    """The decision.

    Attributes:
        bind: pods to bind to the node, in order.
        refused: the other pods, each with kube-scheduler's message on why it does not fit now.
        gated: pods with scheduling gates, which wait for their removal.
    """

    bind: tuple[Pod, ...]
    refused: tuple[tuple[Pod, str], ...]
    gated: tuple[Pod, ...]


def decide_scheduling(node: SchedulerNode, pods: Iterable[Pod]) -> SchedulingDecision:
    """Decide for all waiting pods.

    Args:
        node: the one node.
        pods: all pods of the cluster; the API server has copied the PriorityClass's value into
            ``spec.priority``.
    """
    everyone = list(pods)
    free = node.allocatable
    free_for_masters = max(1, _places(node) // 2)
    for pod in everyone:
        if pod.spec.node_name == node.name and not pod.finished:
            free = free.minus(_occupied(pod))
            free_for_masters -= _is_master(pod)
    waiting = _in_order(everyone)
    bind: list[Pod] = []
    refused: list[tuple[Pod, str]] = []
    for pod in waiting:
        if pod.spec.scheduling_gates:
            continue
        try:
            reason = _misfit(node, free, free_for_masters, pod)
        except ValueError as error:
            reason = f"the pod's requests can't be read: {error}"
        if reason:
            refused.append((pod, f"0/1 nodes are available: {reason}."))
        else:
            bind.append(pod)
            free = free.minus(pod_units(pod))
            free_for_masters -= _is_master(pod)
    gated = tuple(pod for pod in waiting if pod.spec.scheduling_gates)
    return SchedulingDecision(tuple(bind), tuple(refused), gated)


def _occupied(pod: Pod) -> ResourceUnits:
    try:
        return pod_units(pod)
    except ValueError:  # stored by a version that did not check quantities; the runner rejects it
        return ResourceUnits.one_pod()


def _waits(pod: Pod) -> bool:
    return (
        not pod.spec.node_name
        and not pod.finished
        and pod.metadata.deletion_timestamp is None
        and pod.spec.scheduler_name == SCHEDULER_NAME
    )


def _in_order(everyone: list[Pod]) -> list[Pod]:
    """The waiting pods, ordered by priority, then by the age of their job, then by their own age."""
    began: dict[str, datetime] = {}
    for pod in everyone:
        if job := pod.metadata.controller_uid:
            began[job] = min(_created(pod), began.get(job, _created(pod)))

    def order(pod: Pod) -> tuple[int, datetime, str, datetime, str]:
        job = pod.metadata.controller_uid
        return (-(pod.spec.priority or 0), began.get(job, _created(pod)), job, _created(pod), pod.key)

    return sorted(filter(_waits, everyone), key=order)


def _created(pod: Pod) -> datetime:
    return pod.metadata.creation_timestamp or _EPOCH


def _is_master(pod: Pod) -> bool:
    return pod.metadata.labels.get(REPLICA_TYPE_LABEL) == MASTER_TYPE


def _places(node: SchedulerNode) -> int:
    return node.allocatable.values.get("pods", 0)


def _misfit(node: SchedulerNode, free: ResourceUnits, free_for_masters: int, pod: Pod) -> str:
    """Why the pod cannot be bound now; empty if it can."""
    if node.unschedulable:
        return "1 node(s) were unschedulable"
    selected = pod.spec.node_selector.items() <= node.labels.items()
    if not (selected and affinity_admits(pod.spec.affinity, node.name, node.labels)):
        return "1 node(s) didn't match Pod's node affinity/selector"
    if requires_other_pods(pod.spec.affinity):
        return "1 node(s) can't evaluate affinity to other pods, which the embedded cluster does not support"
    lacking = free.lacking(pod_units(pod))
    most = _places(node)
    too_many = f"1 Too many pods ({most} run at once: edl local up --pods-per-core)"
    # Whether workers leave any place free changes every second. A waiting master's reason should not change
    # with it, since thousands of masters may wait.
    if set(lacking) <= {"pods"} and free_for_masters < 1 and _is_master(pod):
        return f"1 Too many masters (half of the {most} pods that run at once: edl local up --pods-per-core)"
    return ", ".join(too_many if name == "pods" else f"1 Insufficient {name}" for name in lacking)
