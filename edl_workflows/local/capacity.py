"""The one node: its name, and what it offers to pods."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl_workflows.jobs.objects import parse_quantity

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
