"""Argo's half of the agent's world: its kinds, and a controller that writes what Argo's would, one write at a
time."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent.run import ArgoAgent, ArgoAgentOptions
from edl_workflows.pipelines.argo.api import (
    COMPLETED_LABEL,
    GROUP,
    INSTANCE_LABEL,
    VERSION,
    WORKFLOW_TASK_SETS,
    WORKFLOWS,
)
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CRDS, Object
from tests.airflow.support import eventually

STARTED = "2026-01-01T00:00:00Z"


def crd(resource: ApiResource, *, status: bool) -> dict[str, Any]:
    """A kind of Argo's that takes any field; only the task sets have a status of their own path."""
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    if status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": CRDS.api_version,
        "kind": CRDS.kind,
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
            },
            "versions": [version],
        },
    }


ARGO_CRDS = (crd(WORKFLOWS, status=False), crd(WORKFLOW_TASK_SETS, status=True))


def body(stage: str, *, on_cancel: str = "delete", wait: bool = True, **request: Any) -> dict[str, Any]:
    """A plugin step's body."""
    return {"stage": stage, "onCancel": on_cancel, "wait": wait, "request": request}


@dataclass
class Argo:
    """Writes Workflows and WorkflowTaskSets in the cluster handle's namespace."""

    cluster: Cluster

    def start(self, name: str, instance: str = "", **spec: Any) -> str:
        """A running workflow with an empty task set, of a controller with this instance id; its uid."""
        status = {"phase": "Running", "startedAt": STARTED, "nodes": {}}
        made = self._create(WORKFLOWS, name, spec=spec, status=status)
        owner = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Workflow",
            "name": name,
            "uid": made["metadata"]["uid"],
        }
        self._create(WORKFLOW_TASK_SETS, name, owner, spec={"tasks": {}})
        if instance:
            labels = {"metadata": {"labels": {INSTANCE_LABEL: instance}}}
            client.patch(self.cluster, WORKFLOW_TASK_SETS, name, labels)
        return str(made["metadata"]["uid"])

    def add(self, workflow: str, node: str, step: Any, *, name: str = "", started: str = STARTED) -> None:
        """A plugin node: the task first and the workflow after it, as the controller writes them."""
        self.add_task(workflow, node, {"plugin": {"edl": step}})
        self.add_node(workflow, node, name or f"{workflow}.{node}", started)

    def add_task(self, workflow: str, node: str, template: Any) -> None:
        """Only the task."""
        change = {"metadata": {"labels": {COMPLETED_LABEL: "false"}}, "spec": {"tasks": {node: template}}}
        client.patch(self.cluster, WORKFLOW_TASK_SETS, workflow, change)

    def add_node(self, workflow: str, node: str, name: str, started: str = STARTED) -> None:
        """Only the workflow's node."""
        found = {"id": node, "name": name, "type": "Plugin", "phase": "Pending", "startedAt": started}
        self._patch_workflow(workflow, {"status": {"nodes": {node: found}}})

    def result(self, workflow: str, node: str) -> Any:
        """What the agent answered; None: nothing yet."""
        entry = self.entry(workflow, node)
        return None if entry is not None and entry["phase"] == "Pending" else entry

    def entry(self, workflow: str, node: str) -> Any:
        """What the agent wrote about a node: its answer, or a message while it waits."""
        return ((self.task_set(workflow).get("status") or {}).get("nodes") or {}).get(node)

    def take_message(self, workflow: str, node: str) -> str:
        """Take the message about a node that waits over into the workflow; "" if there is none."""
        message = str((self.entry(workflow, node) or {}).get("message") or "")
        if message:
            self._patch_workflow(workflow, {"status": {"nodes": {node: {"message": message}}}})
        return message

    def take(self, workflow: str, node: str) -> Any:
        """Take an answer in: the result goes, then the task, then the node has its phase."""
        answer = self.result(workflow, node)
        assert answer is not None, f"{node} is not answered"
        self.drop_result(workflow, node)
        self.vanish(workflow, node)
        self.end_node(workflow, node, answer["phase"])
        return answer

    def drop_result(self, workflow: str, node: str) -> None:
        """The first half of taking an answer in."""
        client.patch_status(self.cluster, WORKFLOW_TASK_SETS, workflow, {"nodes": {node: None}})

    def vanish(self, workflow: str, node: str) -> None:
        """The task goes: it was answered, timed out, or its workflow was stopped."""
        client.patch(self.cluster, WORKFLOW_TASK_SETS, workflow, {"spec": {"tasks": {node: None}}})

    def fail(self, workflow: str, node: str, phase: str = "Failed") -> None:
        """The task goes, its node ends in a phase."""
        self.vanish(workflow, node)
        self.end_node(workflow, node, phase)

    def end_node(self, workflow: str, node: str, phase: str) -> None:
        """Only the node has its phase."""
        self._patch_workflow(workflow, {"status": {"nodes": {node: {"phase": phase}}}})

    def retry(self, workflow: str, node: str, step: Any, started: str) -> None:
        """As `argo retry` by hand: the node goes, and comes back with a later start."""
        self.drop_node(workflow, node)
        self.add(workflow, node, step, started=started)

    def drop_node(self, workflow: str, node: str) -> None:
        """Only the workflow's node goes."""
        self._patch_workflow(workflow, {"status": {"nodes": {node: None}}})

    def end_workflow(self, workflow: str) -> None:
        """The workflow has ended, but its node is Pending, and the task set has its task: what Argo 4.1
        writes when a message about a step and the workflow's deadline meet."""
        self._patch_workflow(workflow, {"status": {"phase": "Failed", "finishedAt": STARTED}})

    def complete(self, workflow: str) -> None:
        """The workflow has ended."""
        change = {"metadata": {"labels": {COMPLETED_LABEL: "true"}}}
        client.patch(self.cluster, WORKFLOW_TASK_SETS, workflow, change)

    def delete(self, workflow: str) -> None:
        """The workflow and, as the garbage collector does, its task set."""
        for resource in (WORKFLOWS, WORKFLOW_TASK_SETS):
            client.delete(self.cluster, resource, workflow)

    def task_set(self, workflow: str) -> Object:
        """As it is now."""
        return client.get(self.cluster, WORKFLOW_TASK_SETS, workflow)

    def workflow(self, name: str) -> Object:
        """As it is now."""
        return client.get(self.cluster, WORKFLOWS, name)

    def _patch_workflow(self, name: str, change: dict[str, Any]) -> None:
        client.patch(self.cluster, WORKFLOWS, name, change)

    def _create(
        self, resource: ApiResource, name: str, owner: dict[str, Any] | None = None, **fields: Any
    ) -> Object:
        metadata: dict[str, Any] = {"name": name, "namespace": self.cluster.namespace}
        if owner:
            metadata["ownerReferences"] = [owner]
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **fields}
        return client.create(self.cluster, manifest, resource=resource)


@contextlib.contextmanager
def running(cluster: Cluster, options: ArgoAgentOptions | None = None) -> Iterator[ArgoAgent]:
    """An agent in a thread, for the handle's namespace; at the end it is stopped as by SIGTERM."""
    agent = ArgoAgent(
        cluster, options or ArgoAgentOptions(namespaces=NamespaceSelection.of(cluster.namespace))
    )
    stop, errors = threading.Event(), list[EdlError]()

    def run() -> None:
        try:
            agent.run(stop)
        except EdlError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        stop.set()
        thread.join(240)
        assert not thread.is_alive(), "the agent does not end"
        assert not errors, errors


def parameters(argo: Argo, workflow: str, node: str) -> dict[str, str]:
    """The outputs of a step, by name."""
    return {one["name"]: one["value"] for one in argo.result(workflow, node)["outputs"]["parameters"]}


def answered(argo: Argo, workflow: str, node: str, phase: str) -> Any:
    """Wait for the answer to a step, which has this phase."""
    eventually(lambda: argo.result(workflow, node) is not None, f"{node} is answered")
    answer = argo.result(workflow, node)
    assert answer["phase"] == phase, answer["message"]
    return answer
