"""Workflows on the real Argo controller: starting them, waiting for them, and jobs whose status a test writes
itself."""

import contextlib
import datetime as dt
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from edl_workflows.pipelines.argo import runs
from edl_workflows.pipelines.argo.api import WORKFLOW_TEMPLATES, WORKFLOWS
from edl_workflows.pipelines.argo.nodes import nodes_of
from edl_workflows.pipelines.argo.templates import catalog
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.argo.templates.workflows import TemplateOptions
from edl_workflows.pipelines.cli.services import crds
from edl_workflows.runtime.kube import client, resources, transport
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.bed import Bed
from tests.demo.processes import Child

T = TypeVar("T")
SPEC = """\
replicaSpecs:
  worker:
    replicas: 1
    template: {spec: {containers: [{name: main, image: "none:1"}]}}
"""
"""Of a job that no controller looks at."""


def until(look: Callable[[], T | None], seconds: float, what: str | Callable[[], str]) -> T:
    """Wait until `look` finds something; what it found. `what` is for the message of who waited in vain."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.2)
    return found


def create(
    cluster: Cluster, resource: Any, manifest: Mapping[str, Any], *query: tuple[str, str]
) -> dict[str, Any]:
    """Create an object of a kind that only Argo's part of the package knows; unknown fields are refused."""
    where = cluster.namespace if resource.namespaced else ""
    placed = {**manifest, "metadata": {**manifest["metadata"], **({"namespace": where} if where else {})}}
    what = f"create {resource.kind} {where}/{manifest['metadata'].get('name')}"
    path, arguments = resource.path(where), (("fieldValidation", "Strict"), *query)
    request = transport.ApiRequest("create", resource.plural, path, what, arguments, placed, idempotent=False)
    created: dict[str, Any] = transport.send(cluster, request)
    return created


@dataclass
class Run:
    """A workflow that was started."""

    cluster: Cluster
    name: str

    def get(self) -> dict[str, Any]:
        """The workflow now."""
        return client.get(self.cluster, WORKFLOWS, self.name)

    def wait(self, phase: str = "Succeeded", seconds: float = 180) -> dict[str, Any]:
        """Wait until it has ended, and see that it ended so."""
        found = until(self._ended, seconds, self.story)
        assert runs.phase_of(found) == phase, self.story()
        return found

    def _ended(self) -> dict[str, Any] | None:
        workflow = self.get()
        return workflow if runs.phase_of(workflow) in runs.ENDED else None

    def story(self) -> str:
        """All its steps."""
        workflow = self.get()
        return "\n".join(
            [str(workflow.get("status", {}).get("message")), *map(str, runs.step_states(workflow))]
        )

    def node(self, name: str) -> dict[str, Any] | None:
        """The newest node of a display name."""
        nodes = nodes_of(self.get().get("status") or {}) or {}
        found = [node for node in nodes.values() if node["displayName"] == name]
        return max(found, key=lambda node: node.get("startedAt") or "", default=None)

    def await_node(self, name: str, phase: str, seconds: float = 180) -> dict[str, Any]:
        """Wait until a node is in a phase."""

        def found() -> dict[str, Any] | None:
            node = self.node(name)
            return node if node and node["phase"] == phase else None

        return until(found, seconds, lambda: f"{name} {phase} in {self.story()}")

    def outputs(self, node: str) -> dict[str, str]:
        """Output parameters of a node."""
        found = self.node(node)
        assert found is not None, self.story()
        return {one["name"]: one.get("value", "") for one in found["outputs"]["parameters"]}

    def resume(self, name: str, **outputs: str) -> None:
        """As `argo node set` for these outputs of a suspended node, and `argo resume`, which gives the others
        their default."""
        node = self.await_node(name, "Running")
        parameters = [
            {"name": one["name"], "value": outputs.get(one["name"], one["valueFrom"]["default"])}
            for one in node["outputs"]["parameters"]
        ]
        done = {
            "phase": "Succeeded",
            "finishedAt": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "outputs": {"parameters": parameters},
        }
        # Argo keeps a workflow's status in the object itself, without a subresource.
        client.patch(self.cluster, WORKFLOWS, self.name, {"status": {"nodes": {node["id"]: done}}})

    def stop(self) -> None:
        """As `argo stop`: steps end, the exit handler runs."""
        client.patch(self.cluster, WORKFLOWS, self.name, {"spec": {"shutdown": "Stop"}})


@dataclass
class DrivenJob:
    """An ElasticJob of a namespace without a controller: its status is what the test says."""

    cluster: Cluster
    name: str

    def get(self) -> dict[str, Any]:
        """The job now."""
        return client.get(self.cluster, resources.ELASTIC_JOBS, self.name)

    def appear(self, seconds: float = 180) -> "DrivenJob":
        """Wait until a step has made it."""
        until(self.found, seconds, f"ElasticJob {self.name}")
        return self

    def found(self) -> dict[str, Any] | None:
        """The job, if it is there."""
        return client.find(self.cluster, resources.ELASTIC_JOBS, self.name)

    def say(self, phase: str, **more: Any) -> None:
        """What its controller would write: a phase of the spec as it stands now."""
        status = {"phase": phase, "observedGeneration": self.get()["metadata"]["generation"], **more}
        client.patch_status(self.cluster, resources.ELASTIC_JOBS, self.name, status)

    def plans(self) -> list[dict[str, Any]]:
        """Its ScalePlans, oldest first."""
        scope = resources.Scope(resources.SCALE_PLANS, self.cluster.namespace)
        found = [
            one
            for one in client.list_objects(self.cluster, scope).items
            if one["spec"]["ownerJob"] == self.name
        ]
        return sorted(found, key=lambda one: str(one["metadata"]["creationTimestamp"]))

    def await_plan(self, number: int = 0, seconds: float = 180) -> str:
        """Wait for its plan number so-and-so; the plan's name."""

        def found() -> str | None:
            plans = self.plans()
            return str(plans[number]["metadata"]["name"]) if len(plans) > number else None

        return until(found, seconds, f"plan {number} of {self.name}")

    def say_of_plan(self, name: str, phase: str, **more: Any) -> None:
        """What its master would write."""
        client.patch_status(self.cluster, resources.SCALE_PLANS, name, {"phase": phase, **more})


@dataclass(frozen=True)
class Argo:
    """A namespace with our templates, for each way to wait, and an agent that serves it."""

    bed: Bed
    cluster: Cluster

    def start(self, template: str, way: WaitMode, **parameters: str) -> Run:
        """Start a workflow from one of our templates; a parameter's hyphens are underscores here."""
        values = {name.replace("_", "-"): value for name, value in parameters.items()}
        made = runs.submit_workflow(self.cluster, runs.WorkflowSubmission(f"{template}-{way}", values))
        return Run(self.cluster, made["metadata"]["name"])

    def run(self, name: str, spec: Mapping[str, Any]) -> Run:
        """Start a workflow of the test's own."""
        manifest = {
            "apiVersion": WORKFLOWS.api_version,
            "kind": "Workflow",
            "metadata": {"name": name},
            "spec": spec,
        }
        return Run(self.cluster, create(self.cluster, WORKFLOWS, manifest)["metadata"]["name"])

    def queue(self, name: str, jobs: int) -> None:
        """Make the ConfigMap of a queue, unless it is there."""
        if client.find(self.cluster, resources.CONFIG_MAPS, name) is None:
            metadata, data = {"name": name}, {"jobs": str(jobs)}
            manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            client.create(self.cluster, manifest)

    def job(self, name: str) -> DrivenJob:
        """A job of the namespace."""
        return DrivenJob(self.cluster, name)


def named(manifest: dict[str, Any], way: WaitMode) -> dict[str, Any]:
    """A template under a name that says how it waits, so that both stand in one namespace."""
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "name": f"{metadata['name']}-{way}"}}


def install(cluster: Cluster, products: tuple[str, ...]) -> None:
    """Apply our templates, for each way to wait, and the rights of their pods."""
    for manifest in catalog.build_manifests(["access"], TemplateOptions("resource"), cluster.namespace):
        client.create(cluster, manifest)
    ways: tuple[WaitMode, ...] = ("resource", "plugin")
    for way in ways:
        for manifest in (
            catalog.build_manifests(products, TemplateOptions(way), cluster.namespace) if products else ()
        ):
            create(cluster, WORKFLOW_TEMPLATES, named(manifest, way))


@contextlib.contextmanager
def agent(bed: Bed, namespace: str, log: Path) -> Iterator[None]:
    """An agent for one namespace, as a process of this machine."""
    command = [
        sys.executable, "-m", "edl_workflows", "argo", "agent", "--kubeconfig", str(bed.kubeconfig),
        "--namespace", namespace, "--metrics-port", "0",
    ]  # fmt: skip
    child = Child("agent", command, os.environ, log)
    try:
        yield
        child.check()
    finally:
        child.terminate()
        child.reap()


@contextlib.contextmanager
def argo(bed: Bed, cluster: Cluster, products: tuple[str, ...], folder: Path) -> Iterator[Argo]:
    """Our definitions and templates in a namespace, and an agent that serves it."""
    crds.install(["all"], kubeconfig=bed.kubeconfig)
    install(cluster, products)
    with agent(bed, cluster.namespace, folder / "agent.log"):
        yield Argo(bed, cluster)
