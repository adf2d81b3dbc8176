"""The name of the one node, and its capacity."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl_workflows.jobs.objects import parse_quantity

NODE_NAME = "edl-local"
MAX_PODS = 1000
PODS_PER_CORE = 10
"""Pods that run at once per core of the machine, like kubelet's ``podsPerCore``. Requests are only what a
manifest claims; a hundred training processes with small requests would bring the machine down."""


@dataclass(frozen=True)
class Capacity:
    """What pods may occupy together, as quantities. CPU and memory are declared, not measured, and may exceed
    the machine's. The number of pods that run at once follows from the machine's cores."""

    cpu: str
    memory: str
    pods: int = MAX_PODS

    @classmethod
    def of_machine(cls, cpu: str = "", memory: str = "", pods_per_core: int = PODS_PER_CORE) -> "Capacity":
        """The machine's cores and memory, unless others are given.

        Raises:
            ValueError: a value is not a quantity.
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
