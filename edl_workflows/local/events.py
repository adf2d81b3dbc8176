"""Records Events, which ``kubectl describe`` shows: one object for each event, with a count of
repetitions."""

import hashlib
from datetime import UTC, datetime, timedelta

import structlog

from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.objects.metadata import format_time
from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.local.pods import Pod

KEPT_FOR = timedelta(hours=1)
"""How long an event is kept after its last repetition: the default of Kubernetes' API server."""
_log = structlog.get_logger(__name__)


class EventRecorder:
    """Writes events about pods.

    Args:
        client: the API.
        component: the reporting component, such as ``kubelet``.
        node: the node's name.
    """

    def __init__(self, client: LocalClient, component: str, node: str) -> None:
        self._client = client
        self._component = component
        self._node = node

    def normal(self, pod: Pod, reason: str, message: str, container: str = "") -> None:
        self._record(pod, "Normal", reason, message, container)

    def warning(self, pod: Pod, reason: str, message: str, container: str = "") -> None:
        self._record(pod, "Warning", reason, message, container)

    def _record(self, pod: Pod, kind: str, reason: str, message: str, container: str) -> None:
        meta = pod.metadata
        digest = hashlib.sha256(
            f"{meta.uid}/{self._component}/{reason}/{message}/{container}".encode()
        ).hexdigest()
        name, now = f"{meta.name}.{digest[:16]}", format_time(datetime.now(UTC))
        involved = {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        }
        if container:
            involved["fieldPath"] = f"spec.containers{{{container}}}"
        try:
            present = self._client.find("events", name, meta.namespace)
            if present is not None:
                patch = {"count": int(present.get("count", 1)) + 1, "lastTimestamp": now}
                self._client.patch("events", name, patch, meta.namespace)
                return
            event: Object = {
                "metadata": {"name": name, "namespace": meta.namespace},
                "involvedObject": involved,
                "type": kind,
                "reason": reason,
                "message": message,
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "reportingComponent": self._component,
                "source": {"component": self._component, "host": self._node},
            }
            self._client.create("events", event)
        except ApiError as error:
            # A namespace that is being deleted accepts no events. They are not essential, so the pod
            # continues.
            _log.info("event not recorded", pod=pod.key, reason=reason, error=str(error))


def remove_old(client: LocalClient, now: datetime) -> None:
    """Delete the events that have not been repeated for `KEPT_FOR`."""
    oldest = format_time(now - KEPT_FOR)
    for event in client.list_objects("events"):
        meta = event["metadata"]
        if (event.get("lastTimestamp") or meta["creationTimestamp"]) < oldest:
            client.delete("events", meta["name"], meta["namespace"])
