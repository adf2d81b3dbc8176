"""The scheduling decision as a pure function: (node, pods) → who is bound, and what the others are told.

Order and messages are kube-scheduler's: higher priority first, then the older pod; "0/1 nodes are available: 1
Insufficient cpu." There is no preemption: a running pod is never evicted for a waiting one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler import affinity
from edl_workflows.local.scheduler.resources import Amounts, pod_requests

SCHEDULER_NAME = "default-scheduler"
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Node:
    """What the scheduler knows of the node.

    Attributes:
        name: as pods get it in ``spec.nodeName``.
        allocatable: what pods may occupy together.
        labels: for node selectors.
        unschedulable: cordoned.
    """

    name: str
    allocatable: Amounts
    labels: Mapping[str, str]
    unschedulable: bool = False


@dataclass(frozen=True)
class Plan:
    """The decision.

    Attributes:
        bind: pods to bind to the node, in order.
        refused: why each of the others does not fit now, as kube-scheduler says it.
        gated: pods that wait for their scheduling gates.
    """

    bind: tuple[Pod, ...]
    refused: tuple[tuple[Pod, str], ...]
    gated: tuple[Pod, ...]


def plan(node: Node, pods: Iterable[Pod]) -> Plan:
    """Decide for all pods that wait.

    Args:
        node: the one node.
        pods: all pods of the cluster; the API server has put a PriorityClass's value into ``spec.priority``.
    """
    everyone = list(pods)
    free = node.allocatable
    for pod in everyone:
        if pod.spec.node_name == node.name and not pod.finished:
            free = free.minus(_occupied(pod))
    waiting = sorted((pod for pod in everyone if _waits(pod)), key=_order)
    bind: list[Pod] = []
    refused: list[tuple[Pod, str]] = []
    for pod in waiting:
        if pod.spec.scheduling_gates:
            continue
        try:
            reason = _misfit(node, free, pod)
        except ValueError as error:
            reason = f"the pod's requests can't be read: {error}"
        if reason:
            refused.append((pod, f"0/1 nodes are available: {reason}."))
        else:
            bind.append(pod)
            free = free.minus(pod_requests(pod))
    gated = tuple(pod for pod in waiting if pod.spec.scheduling_gates)
    return Plan(tuple(bind), tuple(refused), gated)


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


def _order(pod: Pod) -> tuple[int, datetime, str]:
    return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or _EPOCH, pod.key)


def _misfit(node: Node, free: Amounts, pod: Pod) -> str:
    """Why the pod can't be bound now; empty if it can."""
    if node.unschedulable:
        return "1 node(s) were unschedulable"
    selected = pod.spec.node_selector.items() <= node.labels.items()
    if not (selected and affinity.admits(pod.spec.affinity, node.name, node.labels)):
        return "1 node(s) didn't match Pod's node affinity/selector"
    if affinity.unsupported(pod.spec.affinity):
        return "1 node(s) can't evaluate affinity to other pods, which the embedded cluster does not support"
    lacking = free.lacking(pod_requests(pod))
    most = node.allocatable.values.get("pods", 0)
    too_many = f"1 Too many pods ({most} run at once: edl local up --pods-per-core)"
    return ", ".join(too_many if name == "pods" else f"1 Insufficient {name}" for name in lacking)
