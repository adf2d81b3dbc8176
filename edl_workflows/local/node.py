"""The Node object of the cluster's only node."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog

from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.objects.metadata import format_time
from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.local.capacity import NODE_NAME
from edl_workflows.local.network.ports import LOOPBACK
from edl_workflows.local.scheduler.decision import SchedulerNode
from edl_workflows.local.scheduler.resources import ResourceUnits

_log = structlog.get_logger(__name__)


def publish_node(client: LocalClient, capacity: Mapping[str, str]) -> None:
    """Create or update the Node object. Labels and a cordon set by users are kept."""
    if client.find("nodes", NODE_NAME) is None:
        labels = {
            "kubernetes.io/hostname": NODE_NAME,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(
                platform.machine(), platform.machine()
            ),
        }
        client.create("nodes", {"metadata": {"name": NODE_NAME, "labels": labels}, "spec": {}})
    client.patch("nodes", NODE_NAME, {"status": _status(capacity)}, subresource="status")


def _status(capacity: Mapping[str, str]) -> Object:
    now = format_time(datetime.now(UTC))
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "RunnerReady",
        "message": "the process runner is ready",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    addresses = [{"type": "InternalIP", "address": LOOPBACK}, {"type": "Hostname", "address": NODE_NAME}]
    return {
        "capacity": dict(capacity),
        "allocatable": dict(capacity),
        "conditions": [ready],
        "addresses": addresses,
    }


def observe_node(client: LocalClient) -> SchedulerNode | None:
    """The node as the scheduler sees it, including changes by users; None if it was deleted."""
    obj = client.find("nodes", NODE_NAME)
    if obj is None:
        return None
    return SchedulerNode(
        name=NODE_NAME,
        allocatable=_readable((obj.get("status") or {}).get("allocatable") or {}),
        labels=obj["metadata"].get("labels") or {},
        unschedulable=bool((obj.get("spec") or {}).get("unschedulable")),
    )


def _readable(quantities: Mapping[str, str]) -> ResourceUnits:
    """The valid quantities. An older version may have stored invalid ones, which are left out."""
    amounts: dict[str, int] = {}
    for name, text in quantities.items():
        try:
            amounts |= ResourceUnits.parse({name: str(text)}).values
        except ValueError as error:
            _log.warning("resource of the node ignored", resource=name, reason=str(error))
    return ResourceUnits(amounts)
