"""Workflows with plugin steps, and processes of the agent that serves them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.argo.api import GROUP, VERSION, WORKFLOWS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Object, Scope
from edl_workflows.testing import free_port
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until

ROOT = Path(__file__).parents[2]
OUTPUTS: dict[str, Any] = {
    "parameters": [{"name": name, "valueFrom": {"supplied": {}}} for name in ("name", "phase")]
}


@contextlib.contextmanager
def agent(
    bed: Bed, namespace: str, point: str = "never", kubeconfig: Path | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """An agent's process for one namespace, which kills itself at a point of
    `tests.unit.pipelines.argo.agent.killed`."""
    command = [
        sys.executable,
        "-m",
        "tests.unit.pipelines.argo.agent.killed",
        point,
        "--namespace",
        namespace,
    ]
    port = free_port()
    command += [
        "--kubeconfig",
        str(kubeconfig or bed.kubeconfig),
        "--no-leader-elect",
        "--metrics-port",
        str(port),
    ]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: process.poll() is not None or ready(port), "the agent is ready")
        yield process
    finally:
        process.kill()
        process.wait()


def ready(port: int) -> bool:
    """Whether an agent has listed what it serves."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    return False


def job(name: str) -> dict[str, Any]:
    """A job that needs nobody: its test says how it ends."""
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": {"replicas": 1, "template": template}}},
    }


def template(name: str, stage: str, /, *, on_cancel: str = "delete", **more: Any) -> dict[str, Any]:
    """A plugin template; `more` is the request but for what templates have."""
    own: dict[str, Any] = {
        key: more.pop(key) for key in ("timeout", "retryStrategy", "inputs") if key in more
    }
    body = {"stage": stage, "onCancel": on_cancel, "request": more}
    return {"name": name, "timeout": "10m", "plugin": {"edl": body}, "outputs": OUTPUTS, **own}


def submit(name: str, /, **more: Any) -> dict[str, Any]:
    """A template that submits a job of its own name."""
    return template(name, "submit", manifest=job(name), **more)


@dataclass
class Argo:
    """One namespace of the real thing."""

    cluster: Cluster

    def start(self, name: str, templates: list[dict[str, Any]], groups: Any = None, **spec: Any) -> None:
        """Run templates one after the other, or in groups by name that run at the same time."""
        groups = groups or [[one["name"]] for one in templates]
        steps = [[{"name": step, "template": step} for step in group] for group in groups]
        manifest = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Workflow",
            "metadata": {"name": name, "namespace": self.cluster.namespace},
            "spec": {
                "entrypoint": "main",
                "templates": [{"name": "main", "steps": steps}, *templates],
                **spec,
            },
        }
        client.create(self.cluster, manifest, resource=WORKFLOWS)

    def patch(self, name: str, change: dict[str, Any]) -> None:
        """Change a workflow, as `argo stop`, `terminate` and `retry` do."""
        client.patch(self.cluster, WORKFLOWS, name, change)

    def status(self, name: str) -> dict[str, Any]:
        """A workflow's."""
        found: dict[str, Any] = client.get(self.cluster, WORKFLOWS, name).get("status") or {}
        return found

    def node(self, name: str, step: str) -> dict[str, Any]:
        """A step's node; {} while there is none."""
        nodes = (self.status(name).get("nodes") or {}).values()
        return next((dict(node) for node in nodes if node["displayName"] == step), {})

    def ended(self, name: str, phase: str, seconds: float = 40) -> dict[str, Any]:
        """Wait for a workflow's end; its status."""
        until(lambda: bool(self.status(name).get("finishedAt")), f"workflow {name} ends", seconds)
        status = self.status(name)
        assert status["phase"] == phase, status
        return status

    def jobs(self) -> dict[str, Object]:
        """The namespace's jobs."""
        listed = client.list_objects(self.cluster, Scope(ELASTIC_JOBS, self.cluster.namespace)).items
        return {one["metadata"]["name"]: one for one in listed}

    def made(self, *jobs: str) -> list[str]:
        """Wait for jobs; their uids."""
        until(lambda: set(jobs) <= set(self.jobs()), f"jobs {jobs} are made")
        return [self.jobs()[one]["metadata"]["uid"] for one in jobs]

    def gone(self, *jobs: str) -> None:
        """Wait until jobs are deleted."""
        until(lambda: not set(jobs) & set(self.jobs()), f"jobs {jobs} are deleted")

    def finish(self, name: str, phase: str = "Succeeded") -> None:
        """Let a job end."""
        status = {"phase": phase, "reason": "TestSaysSo", "message": "the test ended it"}
        client.patch_status(self.cluster, ELASTIC_JOBS, name, status)
