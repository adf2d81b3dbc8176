"""core/v1 Events of an object, aggregated: a repeated message increments the count of the existing Event
instead of creating another one."""

import datetime as dt
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edl_workflows.core.exceptions import AlreadyExistsError, NotFoundError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import EVENTS, Object, Scope

MEMORY = 4096
"""How many Events are remembered to count repetitions, as in client-go's correlator."""
MIN_INTERVAL = 10.0
"""Shortest interval in seconds between two writes of the same Event, so that a reconcile that keeps failing
does not flood the API."""
MAX_MESSAGE = 1024
"""Characters; the API refuses longer notes."""


@dataclass(frozen=True)
class EventNote:
    """What to say about an object.

    Attributes:
        reason: one CamelCase word.
        message: one sentence.
        type: Normal or Warning.
    """

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass
class _RememberedEvent:
    name: str
    count: int
    written: dt.datetime


class Recorder:
    """Writes Events. Thread-safe.

    Args:
        cluster: the API server.
        component: reporting component, such as ``edl-controller``.
    """

    def __init__(self, cluster: Cluster, component: str) -> None:
        self._cluster = cluster
        self._component = component
        self._lock = threading.Lock()
        self._events: OrderedDict[str, _RememberedEvent] = OrderedDict()

    def record(self, obj: Mapping[str, Any], note: EventNote, now: dt.datetime) -> None:
        """Write an Event about `obj`, or increment the count of an equal one. Equal Events cause at most one
        write per `MIN_INTERVAL`.

        Raises:
            EdlError: the API refused the write; the caller decides whether that matters.
        """
        name = _name(obj, note)
        with self._lock:
            event = self._events.get(name)
            if event is not None:
                event.count += 1
                self._events.move_to_end(name)
                if (now - event.written).total_seconds() < MIN_INTERVAL:
                    return
                event.written = now
        if event is not None and self._count_up(obj, event, now):
            return
        self._create(obj, note, name, now)

    def _count_up(self, obj: Mapping[str, Any], event: _RememberedEvent, now: dt.datetime) -> bool:
        body = {"count": event.count, "lastTimestamp": _time(now)}
        try:
            client.patch(self._cluster, EVENTS, event.name, body, _namespace(obj))
        except NotFoundError:  # events live for an hour
            return False
        return True

    def _create(self, obj: Mapping[str, Any], note: EventNote, name: str, now: dt.datetime) -> None:
        manifest = _manifest(obj, note, name, now, self._component)
        try:
            client.create(self._cluster, manifest)
            count = 1
        except AlreadyExistsError:  # an earlier process wrote it
            existing = client.find(self._cluster, EVENTS, name, _namespace(obj)) or {}
            count = int(existing.get("count") or 1) + 1
            body = {"count": count, "lastTimestamp": _time(now)}
            client.patch(self._cluster, EVENTS, name, body, _namespace(obj))
        with self._lock:
            self._events[name] = _RememberedEvent(name, count, now)
            while len(self._events) > MEMORY:
                self._events.popitem(last=False)


def of_object(cluster: Cluster, obj: Mapping[str, Any]) -> list[Object]:
    """The Events of an object, oldest first."""
    uid = obj["metadata"]["uid"]
    scope = Scope(EVENTS, _namespace(obj), field_selector=f"involvedObject.uid={uid}")
    return sorted(client.list_objects(cluster, scope).items, key=lambda e: e.get("lastTimestamp") or "")


def _manifest(obj: Mapping[str, Any], note: EventNote, name: str, now: dt.datetime, component: str) -> Object:
    metadata = obj["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": _namespace(obj)},
        "involvedObject": {
            "apiVersion": obj.get("apiVersion"),
            "kind": obj.get("kind"),
            "name": metadata["name"],
            "namespace": metadata.get("namespace"),
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        },
        "reason": note.reason,
        "message": note.message[:MAX_MESSAGE],
        "type": note.type,
        "count": 1,
        "firstTimestamp": _time(now),
        "lastTimestamp": _time(now),
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "",
    }


def _name(obj: Mapping[str, Any], note: EventNote) -> str:
    """The Event's name. Equal notes about the same object have the same name, even after a restart."""
    metadata = obj["metadata"]
    text = "\0".join((str(metadata.get("uid")), note.type, note.reason, note.message))
    return f"{metadata['name'][:200]}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _namespace(obj: Mapping[str, Any]) -> str:
    return obj["metadata"].get("namespace") or "default"


def _time(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
