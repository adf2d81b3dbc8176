"""The rows of ``kubectl get``: objects as a ``Table``."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from edl_workflows.local.apiserver.objects.catalog import ServedResource, TableColumn
from edl_workflows.local.apiserver.storage.revisions import Object

Cells = Callable[[Object, datetime], list[Any]]
_UNKNOWN = "<unknown>"
_NONE = "<none>"


def human_duration(span: timedelta) -> str:
    """A duration as kubectl prints ages."""
    seconds = int(span.total_seconds())
    if seconds < 0:
        return "0s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    steps: tuple[tuple[bool, str, int, str], ...] = (
        (seconds < 120, f"{seconds}s", 0, ""),
        (minutes < 10, f"{minutes}m", seconds % 60, "s"),
        (minutes < 180, f"{minutes}m", 0, ""),
        (hours < 8, f"{hours}h", minutes % 60, "m"),
        (hours < 48, f"{hours}h", 0, ""),
        (days < 8, f"{days}d", hours % 24, "h"),
        (days < 730, f"{days}d", 0, ""),
        (True, f"{days // 365}y", days % 365, "d"),
    )
    _, first, rest, unit = next(step for step in steps if step[0])
    return f"{first}{rest}{unit}" if rest else first


def age_of(stamp: Any, now: datetime) -> str:
    """The age of a Kubernetes time; ``<unknown>`` if there is none."""
    if not isinstance(stamp, str):
        return _UNKNOWN
    try:
        return human_duration(now - datetime.fromisoformat(stamp))
    except ValueError:
        return "<invalid>"


_STEP = re.compile(
    r"""\.((?:[^.\[\]\\]|\\.)+)          # .name, with \. for a dot in it
      |\[['"]([^'"]+)['"]\]              # ['name']
      |\[(\d+)\]                         # [0]
      |\[\?\(@\.([\w.]+)\s*==\s*['"]([^'"]*)['"]\)\]  # [?(@.type=="Ready")]
    """,
    re.VERBOSE,
)


def json_path(obj: Any, path: str) -> Any:
    """The first value at a JSON path of a CRD; None if there is none. Fields, indices and ``[?(@.a=="b")]``
    are supported."""
    value = obj
    for match in _STEP.finditer(path):
        name, quoted, index, field, literal = match.groups()
        if name or quoted:
            value = value.get(quoted or name.replace("\\", "")) if isinstance(value, dict) else None
        elif index:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
        else:
            entries = value if isinstance(value, list) else []
            value = next((entry for entry in entries if json_path(entry, f".{field}") == literal), None)
    return value


def _cell(column: TableColumn, obj: Object, now: datetime) -> Any:
    value = json_path(obj, column.path)
    if column.type == "date":
        return age_of(value, now)
    if value is None or isinstance(value, (dict, list)) or column.type != "string":
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pod_status(pod: Object) -> str:
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    shown = str(status.get("reason") or status.get("phase") or "Unknown")
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        state = container.get("state") or {}
        reason = (state.get("waiting") or state.get("terminated") or {}).get("reason")
        if reason and reason != "PodInitializing" and not (reason == "Completed" and shown == "Running"):
            shown = str(reason)
    return shown


def _pod(pod: Object, now: datetime) -> list[Any]:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    ready = sum(bool(container.get("ready")) for container in containers)
    restarts = sum(int(container.get("restartCount") or 0) for container in containers)
    return [
        f"{ready}/{len(pod['spec'].get('containers') or [])}",
        _pod_status(pod),
        str(restarts),
        age_of(pod["metadata"].get("creationTimestamp"), now),
        status.get("podIP") or _NONE,
        pod["spec"].get("nodeName") or _NONE,
    ]


def _service(service: Object, now: datetime) -> list[Any]:
    spec = service["spec"]
    ports = [f"{port['port']}/{port.get('protocol', 'TCP')}" for port in spec.get("ports") or []]
    selector = [f"{key}={value}" for key, value in (spec.get("selector") or {}).items()]
    return [
        spec.get("type"),
        spec.get("clusterIP") or _NONE,
        spec.get("externalName") or _NONE,
        ",".join(ports) or _NONE,
        age_of(service["metadata"].get("creationTimestamp"), now),
        ",".join(selector) or _NONE,
    ]


def _node(node: Object, now: datetime) -> list[Any]:
    status = node.get("status") or {}
    ready = next(
        (condition["status"] for condition in status.get("conditions") or [] if condition["type"] == "Ready"),
        "Unknown",
    )
    shown = {"True": "Ready", "False": "NotReady"}.get(ready, "Unknown")
    if node.get("spec", {}).get("unschedulable"):
        shown += ",SchedulingDisabled"
    version = (status.get("nodeInfo") or {}).get("kubeletVersion") or ""
    return [shown, _NONE, age_of(node["metadata"].get("creationTimestamp"), now), version]


def _event(event: Object, now: datetime) -> list[Any]:
    involved = event.get("involvedObject") or {}
    seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    subject = f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"
    return [
        age_of(seen, now),
        event.get("type"),
        event.get("reason"),
        subject,
        (event.get("message") or "").strip(),
    ]


def _endpoints(endpoints: Object, now: datetime) -> list[Any]:
    shown = [
        f"{address['ip']}:{port['port']}"
        for subset in endpoints.get("subsets") or []
        for address in subset.get("addresses") or []
        for port in subset.get("ports") or []
    ]
    return [",".join(shown) or _NONE, age_of(endpoints["metadata"].get("creationTimestamp"), now)]


def _counted(*fields: str) -> Cells:
    def cells(obj: Object, now: datetime) -> list[Any]:
        count = sum(len(obj.get(field) or ()) for field in fields)
        return [count, age_of(obj["metadata"].get("creationTimestamp"), now)]

    return cells


def _secret(secret: Object, now: datetime) -> list[Any]:
    return [
        secret.get("type"),
        len(secret.get("data") or {}),
        age_of(secret["metadata"].get("creationTimestamp"), now),
    ]


_SPECIAL: Mapping[str, tuple[tuple[str, ...], Cells]] = {
    "pods": (("Ready", "Status", "Restarts", "Age", "IP*", "Node*"), _pod),
    "services": (("Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector*"), _service),
    "nodes": (("Status", "Roles", "Age", "Version"), _node),
    "events": (("Last Seen", "Type", "Reason", "Object", "Message"), _event),
    "endpoints": (("Endpoints", "Age"), _endpoints),
    "configmaps": (("Data", "Age"), _counted("data", "binaryData")),
    "serviceaccounts": (("Secrets", "Age"), _counted("secrets")),
    "secrets": (("Type", "Data", "Age"), _secret),
}
"""For each resource, its columns (with a star: only for ``-o wide``) and the function that fills them."""


def _definition(
    name: str, kind: str = "string", description: str = "", priority: int = 0, fmt: str = ""
) -> Object:
    return {"name": name, "type": kind, "format": fmt, "description": description, "priority": priority}


def _columns(resource: ServedResource) -> list[Object]:
    if resource.id in _SPECIAL:
        names = _SPECIAL[resource.id][0]
        return [_definition(name.rstrip("*"), priority=int(name.endswith("*"))) for name in names]
    return [
        _definition(column.name, column.type, column.description, column.priority, column.format)
        for column in resource.columns
    ]


def _cells(resource: ServedResource, obj: Object, now: datetime) -> list[Any]:
    if resource.id in _SPECIAL:
        return _SPECIAL[resource.id][1](obj, now)
    return [_cell(column, obj, now) for column in resource.columns]


def render_table(
    resource: ServedResource, objects: Iterable[Object], now: datetime, include: str, list_metadata: Object
) -> Object:
    """A ``Table`` of objects.

    Args:
        resource: the resource of the objects.
        objects: the rows.
        now: the time from which ages are computed.
        include: ``None``, ``Metadata`` or ``Object``: the part of the object that each row carries.
        list_metadata: the ``metadata`` of the list.
    """
    rows = []
    for obj in objects:
        row: Object = {"cells": [obj["metadata"]["name"], *_cells(resource, obj, now)]}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = partial_metadata(obj)
        rows.append(row)
    name = _definition("Name", fmt="name", description="Name must be unique within a namespace.")
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": [name, *_columns(resource)],
        "rows": rows,
    }


def partial_metadata(obj: Object) -> Object:
    """An object's metadata as ``PartialObjectMetadata``."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
