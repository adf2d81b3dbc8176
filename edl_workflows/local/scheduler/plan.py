"""The scheduling decision as a pure function of the node and the pods.

Messages are kube-scheduler's: "0/1 nodes are available: 1 Insufficient cpu." There is no preemption: a
running pod is never evicted for a waiting one. Pods of higher priority go first. Among equals the older pod
goes first, as in kube-scheduler, but all pods of a job have the age of its first one: a job that has started
gets its other pods before a younger job starts. Masters take at most half of the places, since a master
without workers keeps its place and never ends.

Affinity is read as by kube-scheduler with one node: preferences change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edl_workflows.jobs.names import MASTER_TYPE, REPLICA_TYPE_LABEL
from edl_workflows.jobs.node_selector import requirement_holds
from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler.resources import Amounts, pod_requests

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def requires_other_pods(affinity: Mapping[str, Any]) -> bool:
    """Whether it requires what the embedded cluster does not support: the placement of other pods."""
    return any((affinity.get(kind) or {}).get(_REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))


def affinity_admits(affinity: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether the required node affinity admits a pod to a node.

    Args:
        affinity: the pod's.
        name: the node's, the only field that terms can use.
        labels: the node's.
    """
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return True
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return any(_matches(term, name, labels) for term in terms)


def _matches(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether all requirements of a term hold; a term without any matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not (expressions or fields):
        return False
    return all(requirement_holds(one, labels) for one in expressions) and all(
        requirement_holds(one, {"metadata.name": name}) for one in fields
    )


SCHEDULER_NAME = "default-scheduler"
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class SchedulerNode:
    """The scheduler's view of the node.

    Attributes:
        name: for pods' ``spec.nodeName``.
        allocatable: what pods may occupy together.
        labels: for node selectors.
        unschedulable: cordoned.
    """

    name: str
    allocatable: Amounts
    labels: Mapping[str, str]
    unschedulable: bool = False


@dataclass(frozen=True)
class SchedulingPlan:
    """The decision.

    Attributes:
        bind: pods to bind to the node, in order.
        refused: why each of the others does not fit now, in kube-scheduler's words.
        gated: pods that wait for their scheduling gates.
    """

    bind: tuple[Pod, ...]
    refused: tuple[tuple[Pod, str], ...]
    gated: tuple[Pod, ...]


def plan(node: SchedulerNode, pods: Iterable[Pod]) -> SchedulingPlan:
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
            free = free.minus(pod_requests(pod))
            free_for_masters -= _is_master(pod)
    gated = tuple(pod for pod in waiting if pod.spec.scheduling_gates)
    return SchedulingPlan(tuple(bind), tuple(refused), gated)


def _occupied(pod: Pod) -> Amounts:
    try:
        return pod_requests(pod)
    except ValueError:
        return Amounts.one_pod()  # stored by a version that did not check quantities; the runner refuses it


def _waits(pod: Pod) -> bool:
    return (
        not pod.spec.node_name
        and not pod.finished
        and pod.metadata.deletion_timestamp is None
        and pod.spec.scheduler_name == SCHEDULER_NAME
    )


def _in_order(everyone: list[Pod]) -> list[Pod]:
    """The waiting pods: by priority, then by the age of their job, then by their own."""
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


def _misfit(node: SchedulerNode, free: Amounts, free_for_masters: int, pod: Pod) -> str:
    """Why the pod cannot be bound now; empty if it can."""
    if node.unschedulable:
        return "1 node(s) were unschedulable"
    selected = pod.spec.node_selector.items() <= node.labels.items()
    if not (selected and affinity_admits(pod.spec.affinity, node.name, node.labels)):
        return "1 node(s) didn't match Pod's node affinity/selector"
    if requires_other_pods(pod.spec.affinity):
        return "1 node(s) can't evaluate affinity to other pods, which the embedded cluster does not support"
    lacking = free.lacking(pod_requests(pod))
    most = _places(node)
    too_many = f"1 Too many pods ({most} run at once: edl local up --pods-per-core)"
    if not lacking and free_for_masters < 1 and _is_master(pod):
        return f"1 Too many masters (half of the {most} pods that run at once: edl local up --pods-per-core)"
    return ", ".join(too_many if name == "pods" else f"1 Insufficient {name}" for name in lacking)
