"""The one node: its name, and what it offers to pods."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl_workflows.jobs.objects import parse_quantity

NODE_NAME = "edl-local"
MAX_PODS = 1000
PODS_PER_CORE = 10
"""Pods that run at once for each core of the machine, as of kubelet's ``podsPerCore``. Requests are what a
manifest claims, and small ones of a hundred training processes would take the machine down."""


@dataclass(frozen=True)
class Capacity:
    """What pods may occupy together, as quantities. CPU and memory are declared, not measured: more than the
    machine has is allowed. How many pods run at once follows from the cores that there are."""

    cpu: str
    memory: str
    pods: int = MAX_PODS

    @classmethod
    def of_machine(cls, cpu: str = "", memory: str = "", pods_per_core: int = PODS_PER_CORE) -> "Capacity":
        """The machine's cores and memory, or what is given instead.

        Raises:
            ValueError: one is no quantity.
        """
        for text in filter(None, (cpu, memory)):
            parse_quantity(text)
        cores = len(os.sched_getaffinity(0))
        pods = min(MAX_PODS, pods_per_core * cores)
        return cls(cpu or str(cores), memory or f"{psutil.virtual_memory().total // 1024}Ki", pods)

    def quantities(self, folder: Path) -> dict[str, str]:
        """All resources of the node; storage is that of the state folder's disk."""
        disk = shutil.disk_usage(folder).total // 1024
        return {
            "cpu": self.cpu,
            "memory": self.memory,
            "ephemeral-storage": f"{disk}Ki",
            "pods": str(self.pods),
        }
