"""The node's name and capacity."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl_workflows.core.kubernetes.objects import parse_quantity

NODE_NAME = "edl-local"
MAX_PODS = 1000
PODS_PER_CORE = 10
"""Pods that may run at once per core of the machine, like kubelet's ``podsPerCore``. Requests alone don't
protect the machine: a hundred training processes with small requests would fit, but overload it."""


@dataclass(frozen=True)
class Capacity:
    """The node's resources, as quantities. CPU and memory are declared and may exceed those of the machine.
    The number of pods follows from the machine's cores."""

    cpu: str
    memory: str
    pods: int = MAX_PODS

    @classmethod
    def of_machine(cls, cpu: str = "", memory: str = "", pods_per_core: int = PODS_PER_CORE) -> "Capacity":
        """The capacity of this machine, with `cpu` and `memory` instead of its own where they are given.

        Raises:
            ValueError: a value is not a quantity.
        """
        for text in filter(None, (cpu, memory)):
            parse_quantity(text)
        cores = len(os.sched_getaffinity(0))
        pods = min(MAX_PODS, pods_per_core * cores)
        return cls(cpu or str(cores), memory or f"{psutil.virtual_memory().total // 1024}Ki", pods)

    def quantities(self, folder: Path) -> dict[str, str]:
        """All resources of the node. Ephemeral storage is the size of the disk with the state folder."""
        disk = shutil.disk_usage(folder).total // 1024
        return {
            "cpu": self.cpu,
            "memory": self.memory,
            "ephemeral-storage": f"{disk}Ki",
            "pods": str(self.pods),
        }
