"""Watches of nodes and pods for the planners, which run only while there is something to plan."""

import functools
import time
from collections.abc import Callable
from typing import Any

import structlog

from edl_workflows.controller.snapshot import kept_node, kept_pod
from edl_workflows.exceptions import EdlError
from edl_workflows.jobs import api
from edl_workflows.kube.cache import ObjectChange
from edl_workflows.kube.connect import Cluster, ClusterSource
from edl_workflows.kube.informer import Informer
from edl_workflows.kube.resources import Object, Scope
from edl_workflows.kube.watch import EventType

log = structlog.get_logger(__name__)

COMPLAIN_EVERY = 20
"""A watch that fails is logged the first time and then every 20th, which at the longest delay is every five
minutes.
"""

REST_SECONDS = 5.0
"""How long somebody who has nothing to plan waits for the end of the watches; they end by themselves after
that.
"""


class ClusterWatches:
    """The watches of nodes and pods.

    Args:
        cluster: the API server.
        namespace: whose pods are counted, or `ALL_NAMESPACES`.
        node_changed: called with each change of a node, from the informer's thread.
        without: what can't be done while a watch fails, for the log.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, node_changed: Callable[[ObjectChange], None], without: str
    ) -> None:
        source = ClusterSource.of(cluster)
        self.nodes = Informer(source, Scope(api.NODES), keep=kept_node)
        self.pods = Informer(source, Scope(api.PODS, namespace), keep=kept_pod)
        self.nodes.on_change(node_changed)
        for informer in (self.nodes, self.pods):
            informer.on_error(functools.partial(_complain, without, informer.scope))

    @property
    def synced(self) -> bool:
        """Whether everything is listed."""
        return self.nodes.synced and self.pods.synced

    def start(self) -> None:
        """Begin to watch."""
        self.nodes.start()
        self.pods.start()

    def wait_synced(self, seconds: float) -> bool:
        """Wait until everything is listed; whether that came in time."""
        return self.nodes.wait_synced(seconds) and self.pods.wait_synced(seconds)

    def stop(self, seconds: float) -> None:
        """End both watches; wait so long at most for their threads, both together."""
        deadline = time.monotonic() + seconds
        for informer in (self.nodes, self.pods):
            informer.stop(join_seconds=0)
        for informer in (self.nodes, self.pods):
            informer.stop(max(0.0, deadline - time.monotonic()))


class OnDemandWatches:
    """Watches that run only while somebody plans with them.

    Args:
        cluster, namespace, without: see `ClusterWatches`.
        ask: called when a node changes what it offers, but for the first list, which is looked at anyway.
    """

    def __init__(self, cluster: Cluster, namespace: str, ask: Callable[[], None], without: str) -> None:
        self._make: Callable[[], ClusterWatches] = lambda: ClusterWatches(
            cluster, namespace, self._node_changed, without
        )
        self._ask = ask
        self._watches: ClusterWatches | None = None

    def running(self) -> ClusterWatches:
        """The watches, started if they are not running."""
        if self._watches is None:
            self._watches = self._make()
            self._watches.start()
        return self._watches

    def rest(self, seconds: float = REST_SECONDS) -> None:
        """End them until they are needed again; wait so long at most for their threads."""
        if self._watches is not None:
            self._watches.stop(seconds)
            self._watches = None

    def _node_changed(self, change: ObjectChange) -> None:
        watches = self._watches
        if watches is not None and watches.synced and _offers_otherwise(change):
            self._ask()


def _offers_otherwise(change: ObjectChange) -> bool:
    """Whether a change of a node changes what it offers, and to whom."""
    old = change.old
    return old is None or change.type is EventType.DELETED or _offer(change.object) != _offer(old)


def _offer(node: Object) -> tuple[Any, ...]:
    """What of a node a plan depends on."""
    fields = ("allocatable", "unschedulable", "taints", "notReadySince")
    return node["metadata"].get("labels"), *(node[name] for name in fields)


def _complain(without: str, scope: Scope, error: EdlError, failures: int) -> None:
    if failures % COMPLAIN_EVERY == 1:
        log.warning("watch failed; trying again", consequence=without, watch=str(scope), error=str(error))
