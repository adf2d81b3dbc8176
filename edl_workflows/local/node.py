"""The one node: its name, its capacity and its Node object."""

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from edl_workflows.jobs.objects import parse_quantity
from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.metadata import timestamp
from edl_workflows.local.apiserver.store import Object
from edl_workflows.local.network.ports import LOOPBACK
from edl_workflows.local.scheduler.plan import Node
from edl_workflows.local.scheduler.resources import Amounts

NODE_NAME = "edl-local"
MAX_PODS = 1000
"""Processes are cheap; the bound keeps a runaway controller from taking the machine down."""


@dataclass(frozen=True)
class Capacity:
    """What pods may occupy together, as quantities. It is declared, not measured: more than the machine has is allowed."""

    cpu: str
    memory: str
    pods: int = MAX_PODS

    @classmethod
    def of_machine(cls, cpu: str = "", memory: str = "") -> "Capacity":
        """The machine's cores and memory, or what is given instead.

        Raises:
            ValueError: one is no quantity.
        """
        for text in filter(None, (cpu, memory)):
            parse_quantity(text)
        cores = len(os.sched_getaffinity(0))
        return cls(cpu or str(cores), memory or f"{psutil.virtual_memory().total // 1024}Ki")

    def quantities(self, folder: Path) -> dict[str, str]:
        """All resources of the node; storage is that of the state folder's disk."""
        disk = shutil.disk_usage(folder).total // 1024
        return {
            "cpu": self.cpu,
            "memory": self.memory,
            "ephemeral-storage": f"{disk}Ki",
            "pods": str(self.pods),
        }


def publish(client: LocalClient, capacity: Mapping[str, str]) -> None:
    """Create the Node object or bring it up to date; labels and a cordon that users set stay."""
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
    now = timestamp(datetime.now(UTC))
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


def observe(client: LocalClient) -> Node:
    """The node as the scheduler sees it: what users may have changed is read anew."""
    obj = client.get("nodes", NODE_NAME)
    return Node(
        name=NODE_NAME,
        allocatable=Amounts.parse(obj["status"]["allocatable"]),
        labels=obj["metadata"].get("labels") or {},
        unschedulable=bool(obj["spec"].get("unschedulable")),
    )
