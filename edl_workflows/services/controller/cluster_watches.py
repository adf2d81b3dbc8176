"""Watches of nodes and pods for the scaling loops, which run only while there is something to scale."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import structlog

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.kubernetes import api
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.informer_group import InformerGroup, NamespacedInformer
from edl_workflows.runtime.kube.resources import Object, Scope
from edl_workflows.runtime.kube.watch import EventType
from edl_workflows.services.controller.policy_input import kept_node, kept_pod

log = structlog.get_logger(__name__)

REST_SECONDS = 5.0
"""How long a loop with nothing to scale waits for the watches' threads. Later they end by themselves.
"""


class ClusterWatches(InformerGroup):
    """The watches of nodes and pods.

    Args:
        cluster: the API server.
        namespaces: namespaces of the pods, as `NamespaceSelection.scopes`.
        node_changed, pod_changed: called with each change of a node or a pod, from the informer's thread.
        without: the consequence of a failing watch, for the log.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Collection[str],
        node_changed: Callable[[ObjectChange], None],
        pod_changed: Callable[[ObjectChange], None],
        without: str,
    ) -> None:
        source = ClusterSource.of(cluster)
        self.nodes = Informer(source, Scope(api.NODES), keep=kept_node)
        self.pods = NamespacedInformer(source, Scope(api.PODS), namespaces, keep=kept_pod)
        self.nodes.on_change(node_changed)
        self.pods.on_change(pod_changed)
        super().__init__((self.nodes, *self.pods.informers), functools.partial(_log_failure, without))


class OnDemandWatches:
    """Watches that run only while a scaling loop needs them.

    Args:
        cluster, namespaces, without: see `ClusterWatches`.
        ask: called when a node's capacity or placement rules change. Not called for the first list, which is
            decided with anyway.
        room_freed: called when a pod that has held a place on a node ends or is deleted.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Collection[str],
        ask: Callable[[], None],
        room_freed: Callable[[], None],
        without: str,
    ) -> None:
        self._make: Callable[[], ClusterWatches] = lambda: ClusterWatches(
            cluster, namespaces, self._node_changed, self._pod_changed, without
        )
        self._ask = ask
        self._room_freed = room_freed
        self._watches: ClusterWatches | None = None

    def running(self) -> ClusterWatches:
        """The watches, started if they are not running."""
        if self._watches is None:
            self._watches = self._make()
            self._watches.start()
        return self._watches

    def rest(self, seconds: float = REST_SECONDS) -> None:
        """Stop the watches until they are needed again. Wait at most this long for their threads."""
        if self._watches is not None:
            self._watches.stop(seconds)
            self._watches = None

    def _node_changed(self, change: ObjectChange) -> None:
        watches = self._watches
        if watches is not None and not watches.unlisted and _offers_otherwise(change):
            self._ask()

    def _pod_changed(self, change: ObjectChange) -> None:
        watches = self._watches
        if watches is not None and not watches.unlisted and _frees_room(change):
            self._room_freed()


def _frees_room(change: ObjectChange) -> bool:
    """Whether a pod no longer holds a place on a node that it held before."""
    before = change.object if change.old is None else change.old
    held = before["node"] and not before["over"]
    return bool(held and (change.type is EventType.DELETED or change.object["over"]))


def _offers_otherwise(change: ObjectChange) -> bool:
    """Whether a change of a node affects decisions: its capacity, or which pods it accepts."""
    old = change.old
    return old is None or change.type is EventType.DELETED or _offer(change.object) != _offer(old)


def _offer(node: Object) -> tuple[Any, ...]:
    """The parts of a node on which a decision depends."""
    fields = ("allocatable", "unschedulable", "taints", "notReadySince")
    return node["metadata"].get("labels"), *(node[name] for name in fields)


def _log_failure(without: str, scope: Scope, error: EdlError) -> None:
    log.warning("watch failed; trying again", consequence=without, watch=str(scope), error=str(error))
