"""What a controller keeps of the objects that it watches: what decisions read, and no more. Pure.

Ten thousand pods as the API server sends them are hundreds of megabytes; a decision reads a few fields of
each.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from edl_workflows.core.jobs.usage.spans import held_amounts
from edl_workflows.core.kubernetes.pod_state import OWN_CONTAINER

Object = dict[str, Any]

_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "labels", "ownerReferences",
)  # fmt: skip
_POD_STATUS = ("phase", "reason", "message", "conditions")
_POD_SPEC = ("restartPolicy", "readinessGates", "schedulerName")
_CONTAINER = ("name", "restartPolicy", "restartPolicyRules")
_SHORT = 64
"""Most characters of a text that is interned; longer texts are rarely equal."""


def keep_whole(obj: Mapping[str, Any]) -> Object:
    """All but ``managedFields``, half of an object's size, and a job's history, most of its status."""
    return keep_status(obj, lambda field: field != "history")


def keep_status(obj: Mapping[str, Any], is_kept: Callable[[str], bool]) -> Object:
    """All but ``managedFields``, and of the status only some fields.

    Args:
        obj: the object.
        is_kept: whether to keep a field of the status.
    """
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    kept = {**obj, "metadata": metadata}
    if isinstance(status := obj.get("status"), Mapping):
        kept["status"] = {key: value for key, value in status.items() if is_kept(key)}
    return _shared(kept)  # type: ignore[no-any-return]  # a map gives a map


def differ(new: Mapping[str, Any], old: Mapping[str, Any], silent: Collection[str] = ()) -> bool:
    """Whether two states of an object differ in more than the resourceVersion and silent fields.

    Args:
        new: the newest state, as a cache keeps it.
        old: the state before.
        silent: fields of the status that are not compared.
    """
    return _compared(new, silent) != _compared(old, silent)


def _compared(obj: Mapping[str, Any], silent: Collection[str]) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    compared = {**obj, "metadata": metadata}
    if silent and isinstance(status := obj.get("status"), Mapping):
        compared["status"] = {key: value for key, value in status.items() if key not in silent}
    return compared


def keep_head(obj: Mapping[str, Any]) -> Object:
    """An object's identity, labels and owners."""
    return _shared(head_of(obj))  # type: ignore[no-any-return]  # a map gives a map


def keep_pod(obj: Mapping[str, Any]) -> Object:
    """A pod's identity, its containers' names and restart policies, which of them is the job's own, the
    states of all, and what the pod holds of its node."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    kept_spec: Object = {"containers": [_select(c, _CONTAINER) for c in spec.get("containers") or ()]}
    kept_spec |= _select(spec, _POD_SPEC)
    if spec.get("initContainers"):
        kept_spec["initContainers"] = [_select(c, _CONTAINER) for c in spec["initContainers"]]
    kept = _select(status, _POD_STATUS)
    for field in ("initContainerStatuses", "containerStatuses"):
        if status.get(field):
            kept[field] = [_keep_container_status(container) for container in status[field]]
    head = head_of(obj)
    if own := (obj["metadata"].get("annotations") or {}).get(OWN_CONTAINER):
        head["metadata"]["annotations"] = {OWN_CONTAINER: own}
    kept_fields = {**head, "spec": kept_spec, "status": kept, "held": held_amounts(obj)}
    return _shared(kept_fields)  # type: ignore[no-any-return]


def _select(fields: Mapping[str, Any], names: Iterable[str]) -> Object:
    return {name: fields[name] for name in names if name in fields}


def _keep_container_status(status: Mapping[str, Any]) -> Object:
    restarts = status.get("restartCount") or 0
    return {"name": status.get("name"), "state": status.get("state") or {}, "restartCount": restarts}


def head_of(obj: Mapping[str, Any], fields: Iterable[str] = _METADATA) -> Object:
    """What identifies an object, with these fields of its metadata."""
    metadata = {key: obj["metadata"][key] for key in fields if key in obj["metadata"]}
    return {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": metadata}


def _shared(value: Any) -> Any:
    """A copy in which equal short texts are one object: each parsed JSON document has its own copy of every
    key.

    Each value of each event is looked at, so only the exact types of parsed JSON are compared.
    """
    kind = type(value)
    if kind is str:
        return sys.intern(value) if len(value) <= _SHORT else value
    if kind is dict:
        return {sys.intern(key): _shared(item) for key, item in value.items()}
    if kind is list:
        return [_shared(item) for item in value]
    return value
