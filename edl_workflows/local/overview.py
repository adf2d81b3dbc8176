"""The data of `edl local status`: the node's capacity, the requests, and the pods."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from edl_workflows.local.capacity import NODE_NAME
from edl_workflows.local.daemon import Daemon
from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler.resources import ResourceUnits, pod_units
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ALL_NAMESPACES, NODES, PODS, Scope


class PodLine(BaseModel):
    namespace: str
    name: str
    phase: str
    reason: str
    ready: int
    containers: int
    restarts: int


class Overview(BaseModel):
    """The running cluster.

    Attributes:
        daemon: its process.
        capacity: resources of the node, as quantities.
        requested: requests of unfinished pods, in millicores, bytes and items.
        pods: all pods.
    """

    daemon: Daemon
    capacity: dict[str, str]
    requested: dict[str, int]
    pods: list[PodLine]

    def resource_rows(self) -> Iterator[tuple[str, str, str]]:
        """(resource, requested, capacity)."""
        for name, capacity in sorted(self.capacity.items()):
            amount = self.requested.get(name, 0)
            yield name, f"{amount}m" if name == "cpu" else str(amount), capacity

    def pod_rows(self) -> Iterator[tuple[str, ...]]:
        """(namespace, pod, phase, ready, restarts)."""
        for pod in self.pods:
            phase = f"{pod.phase} ({pod.reason})" if pod.reason else pod.phase
            yield pod.namespace, pod.name, phase, f"{pod.ready}/{pod.containers}", str(pod.restarts)


def read_overview(daemon: Daemon) -> Overview:
    """Read the overview from the cluster.

    Raises:
        UnavailableError: the cluster does not answer.
    """
    cluster = Cluster.from_kubeconfig(daemon.kubeconfig)
    node = client.get(cluster, NODES, NODE_NAME)
    pod_list = client.list_objects(cluster, Scope(PODS, ALL_NAMESPACES))
    pods = [Pod.model_validate(obj) for obj in pod_list.items]
    requested = ResourceUnits()
    for pod in pods:
        if pod.spec.node_name and not pod.finished:
            requested = requested.plus(pod_units(pod))
    capacity = node["status"]["capacity"]
    return Overview(
        daemon=daemon,
        capacity=capacity,
        requested={name: amount for name, amount in requested.values.items() if name in capacity},
        pods=[_line(pod) for pod in pods],
    )


def _line(pod: Pod) -> PodLine:
    statuses: list[dict[str, Any]] = pod.status.get("containerStatuses") or []
    conditions = {condition["type"]: condition for condition in pod.status.get("conditions") or []}
    unscheduled = conditions.get("PodScheduled", {})
    waiting = (
        status["state"].get("waiting", {}).get("reason", "") for status in statuses if status.get("state")
    )
    reason = pod.status.get("reason") or unscheduled.get("reason") or next(filter(None, waiting), "")
    return PodLine(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        phase=pod.phase,
        reason=reason,
        ready=sum(bool(status.get("ready")) for status in statuses),
        containers=len(pod.spec.containers),
        restarts=sum(int(status.get("restartCount", 0)) for status in statuses),
    )
