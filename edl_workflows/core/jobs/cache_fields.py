"""What a controller keeps of the objects that it watches: what decisions read, and no more. Pure.

Ten thousand pods as the API server sends them are hundreds of megabytes; a decision reads a few fields of
each.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

Object = dict[str, Any]

_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "labels", "ownerReferences",
)  # fmt: skip
_POD_STATUS = ("phase", "reason", "message", "conditions")
_SHORT = 64
"""Most characters of a text that is interned; longer texts are rarely equal."""


def keep_whole(obj: Mapping[str, Any]) -> Object:
    """All but ``managedFields``, half of an object's size."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return _shared({**obj, "metadata": metadata})  # type: ignore[no-any-return]  # a map gives a map


def keep_head(obj: Mapping[str, Any]) -> Object:
    """An object's identity, labels and owners."""
    return _shared(head_of(obj))  # type: ignore[no-any-return]  # a map gives a map


def keep_pod(obj: Mapping[str, Any]) -> Object:
    """A pod's identity, the names of its containers, and their states."""
    status = obj.get("status") or {}
    containers = [{"name": c.get("name")} for c in (obj.get("spec") or {}).get("containers") or ()]
    kept = {key: status[key] for key in _POD_STATUS if key in status}
    if status.get("containerStatuses"):
        kept["containerStatuses"] = [
            {"name": c.get("name"), "state": c.get("state") or {}, "restartCount": c.get("restartCount") or 0}
            for c in status["containerStatuses"]
        ]
    kept_fields = {**head_of(obj), "spec": {"containers": containers}, "status": kept}
    return _shared(kept_fields)  # type: ignore[no-any-return]


def head_of(obj: Mapping[str, Any], fields: Iterable[str] = _METADATA) -> Object:
    """What identifies an object, with these fields of its metadata."""
    metadata = {key: obj["metadata"][key] for key in fields if key in obj["metadata"]}
    return {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": metadata}


def _shared(value: Any) -> Any:
    """A copy in which equal short texts are one object: each parsed JSON document has its own copy of every
    key."""
    if isinstance(value, Mapping):
        return {sys.intern(key): _shared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shared(item) for item in value]
    return sys.intern(value) if isinstance(value, str) and len(value) <= _SHORT else value
