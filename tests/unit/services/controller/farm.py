"""Nodes for tests of what plans with them."""

from dataclasses import dataclass
from typing import Any

from edl_workflows.core.kubernetes.api import NODES
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests.unit.services.di_server.support import TEMPLATE, task


@dataclass
class Farm:
    """Nodes of a test, which no other test's jobs can use: each has a label of its own.

    Attributes:
        key: the label's value.
    """

    cluster: Cluster
    key: str

    def add(self, name: str, cpu: int) -> str:
        """A ready node."""
        full = f"{name}-{self.key}"
        labels = {"farm": self.key, "kubernetes.io/hostname": f"host-of-{full}"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": full, "labels": labels}}
        client.create(self.cluster, node)
        self.offer(name, cpu)
        return full

    def offer(self, name: str, cpu: int) -> None:
        """Other room on a node."""
        ready = {"type": "Ready", "status": "True"}
        amounts = {"cpu": str(cpu), "memory": "64Gi", "pods": "100"}
        client.patch_status(
            self.cluster, NODES, f"{name}-{self.key}", {"allocatable": amounts, "conditions": [ready]}
        )

    def remove(self, name: str) -> None:
        """A node goes."""
        client.delete(self.cluster, NODES, f"{name}-{self.key}")

    def task(self, replicas: int = 1, **more: Any) -> dict[str, Any]:
        """A task of one core a replica, on these nodes."""
        spec = TEMPLATE["spec"] | {"nodeSelector": {"farm": self.key}}
        return task("none", replicas, name="w", template={"spec": spec}, **more)
