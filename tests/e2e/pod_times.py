"""What the pods of a job held, as somebody sees who looks at them again and again, without the controller."""

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS, Scope

LOOK_SECONDS = 0.2


@dataclass
class PodTimes:
    """Looks at the pods of a job in a thread of its own, while the context lasts.

    Attributes:
        selector: label selector of the pods.
        pods: the last state of each, by uid.
        gone: when those were missed first that exist no more, in Unix seconds.
    """

    cluster: Cluster
    selector: str
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def held(self, resource: str) -> float:
        """Seconds times the requests of a resource, of all pods."""
        return sum(self._seconds(uid) * _requested(pod, resource) for uid, pod in self.pods.items())

    def all_ended(self) -> bool:
        """Whether no pod holds anything now."""
        return all(self._end(uid) is not None for uid in self.pods)

    def last_end(self) -> float:
        """When the last pod ended, in Unix seconds."""
        return max(end for uid in self.pods if (end := self._end(uid)) is not None)

    def _end(self, uid: str) -> float | None:
        status = self.pods[uid]["status"]
        states = [container["state"] for container in status.get("containerStatuses") or ()]
        ends = [_unix(state["terminated"]["finishedAt"]) for state in states if "terminated" in state]
        return max(ends) if ends else self.gone.get(uid)

    def _look(self) -> None:
        scope = Scope(PODS, self.cluster.namespace, label_selector=self.selector)
        while not self._over.wait(LOOK_SECONDS):
            seen = {pod["metadata"]["uid"]: pod for pod in client.list_objects(self.cluster, scope).items}
            self.pods |= seen
            for uid in self.pods.keys() - seen.keys():
                self.gone.setdefault(uid, time.time())

    def _seconds(self, uid: str) -> float:
        status = self.pods[uid]["status"]
        conditions: dict[str, dict[str, str]] = {c["type"]: c for c in status.get("conditions") or ()}
        bound = conditions.get("PodScheduled", {})
        if bound.get("status") != "True":
            return 0.0
        return (self._end(uid) or time.time()) - _unix(bound["lastTransitionTime"])


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _requested(pod: dict[str, Any], resource: str) -> float:
    (container,) = pod["spec"]["containers"]
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return parse_quantity(str(amounts.get(resource, 0)))
