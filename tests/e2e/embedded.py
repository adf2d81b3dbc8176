"""An ElasticJob on the embedded cluster with its controller: everything real, as one pipeline would use it."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil

from edl_workflows.jobs import names
from tests.e2e.submitted import Container, SubmittedJob, Training


def manifest(name: str, folder: Path, epochs: int, delay: float, replicas: dict[str, int]) -> dict[str, Any]:
    """A job that trains the digits and records what it trains on in `folder`."""
    return Training(folder, epochs, delay, replicas).manifest(name, Container("local", sys.executable))


class EmbeddedJob(SubmittedJob):
    """A submitted job whose containers are processes of this machine."""

    def kill(self, pod: str) -> None:
        """SIGKILL every process of a pod, as the kernel's OOM killer or a dying machine would."""
        found = [process for process in psutil.process_iter(["environ"]) if _pod_of(process) == pod]
        assert found, f"no process of {pod}"
        for process in found:
            if process.is_running():
                os.kill(process.pid, signal.SIGKILL)


def _pod_of(process: psutil.Process) -> str:
    environment = process.info["environ"] or {}
    return str(environment.get(names.ENV_POD_NAME) or environment.get("HOSTNAME", ""))
