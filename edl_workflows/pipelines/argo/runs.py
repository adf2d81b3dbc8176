"""Starts a workflow from a template, and reads the states of its steps. Uses the Kubernetes API and needs no
Argo server."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.api import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES, WORKFLOWS
from edl_workflows.pipelines.argo.nodes import nodes_of
from edl_workflows.runtime.kube import client, transport
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object

ENDED = ("Succeeded", "Failed", "Error")
_SHOWN_TYPES = ("Pod", "Plugin", "HTTP", "Suspend", "Skipped", "Container")
"""Types of nodes that do work; nodes of other types only group them."""


@dataclass(frozen=True)
class WorkflowSubmission:
    """A workflow to start.

    Attributes:
        template: name of the WorkflowTemplate.
        parameters: values of its parameters.
        name: name of the workflow; "": the server generates one.
        cluster_scope: whether the template is a ClusterWorkflowTemplate.
    """

    template: str
    parameters: Mapping[str, str]
    name: str = ""
    cluster_scope: bool = False


def submit_workflow(cluster: Cluster, submission: WorkflowSubmission) -> Object:
    """Create the workflow.

    Raises:
        NotFoundError: there is no such template.
        InvalidError: the template has no such parameter, or a required parameter has no value.
        AlreadyExistsError: there is a workflow of that name.
    """
    resource = CLUSTER_WORKFLOW_TEMPLATES if submission.cluster_scope else WORKFLOW_TEMPLATES
    template = client.get(cluster, resource, submission.template)
    _check(submission, (template["spec"].get("arguments") or {}).get("parameters") or [])
    body = _workflow(submission)
    request = transport.ApiRequest(
        "create",
        WORKFLOWS.plural,
        WORKFLOWS.path(cluster.namespace),
        f"create Workflow {cluster.namespace}/{submission.name or submission.template + '-*'}",
        (("fieldValidation", "Strict"),),
        body,
        # If the server generates the name, a repeated request would create a second workflow.
        idempotent=False,
    )
    created: Object = transport.send(cluster, request)
    return created


def _check(submission: WorkflowSubmission, declared: Sequence[Mapping[str, Any]]) -> None:
    declared_names = [parameter["name"] for parameter in declared]
    where = f"the template {submission.template}"
    for name in submission.parameters:
        if name not in declared_names:
            raise InvalidError(
                f"{where} has no parameter {name!r}; it has {', '.join(declared_names) or 'none'}"
            )
    for parameter in declared:
        if (
            "value" not in parameter
            and "valueFrom" not in parameter
            and parameter["name"] not in submission.parameters
        ):
            raise InvalidError(
                f"{where} needs a value of the parameter {parameter['name']!r}: "
                f"{parameter.get('description', '')}"
            )


def _workflow(submission: WorkflowSubmission) -> dict[str, Any]:
    named = {"name": submission.name} if submission.name else {"generateName": f"{submission.template}-"}
    scope = {"clusterScope": True} if submission.cluster_scope else {}
    parameters = [{"name": key, "value": value} for key, value in submission.parameters.items()]
    return {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": named,
        "spec": {
            "workflowTemplateRef": {"name": submission.template, **scope},
            **({"arguments": {"parameters": parameters}} if parameters else {}),
        },
    }


@dataclass(frozen=True)
class StepState:
    """The state of a step.

    Attributes:
        id: id of its node.
        name: its path below the workflow.
        phase, message: as in its node.
    """

    id: str
    name: str
    phase: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.phase}" + (f": {self.message}" if self.message else "")


def phase_of(workflow: Mapping[str, Any]) -> str:
    """The workflow's phase; Pending before the controller has seen it."""
    return (workflow.get("status") or {}).get("phase") or "Pending"


def step_states(workflow: Mapping[str, Any]) -> list[StepState]:
    """The steps that have begun, ordered by start time; empty if the nodes can't be read."""
    name = workflow["metadata"]["name"]
    nodes = nodes_of(workflow.get("status") or {}) or {}
    shown = [node for node in nodes.values() if node.get("type") in _SHOWN_TYPES or _waits_for_attempt(node)]
    return [
        StepState(
            node["id"],
            str(node["name"]).removeprefix(f"{name}."),
            node.get("phase") or "Pending",
            node.get("message") or "",
        )
        for node in sorted(shown, key=lambda node: (node.get("startedAt") or "", node["name"]))
    ]


def _waits_for_attempt(node: Mapping[str, Any]) -> bool:
    """Whether a step with retries waits for a lock: the node of its first attempt does not exist yet."""
    return node.get("type") == "Retry" and not node.get("children") and bool(node.get("message"))


def changed_steps(workflow: Mapping[str, Any], last_states: dict[str, StepState]) -> Iterator[str]:
    """A line for each step whose state is not the one in `last_states`, which is updated."""
    for state in step_states(workflow):
        if last_states.get(state.id) != state:
            last_states[state.id] = state
            yield str(state)


def outputs_of(workflow: Mapping[str, Any]) -> dict[str, str]:
    """The output parameters of the workflow's entrypoint."""
    nodes = nodes_of(workflow.get("status") or {}) or {}
    root = nodes.get(workflow["metadata"]["name"]) or {}
    return {
        parameter["name"]: parameter.get("value") or ""
        for parameter in (root.get("outputs") or {}).get("parameters") or ()
    }
