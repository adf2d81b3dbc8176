"""Reads from a Workflow object the identity and current attempt of a step, and the workflow's deadline."""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_workflows.core.protocol.trace_context import traceparent_of
from edl_workflows.pipelines.argo.agent.tasks import OpenTask, TaskKey, WorkflowKey
from edl_workflows.pipelines.argo.nodes import nodes_of
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.ownership import CancelAction
from edl_workflows.runtime.kube.resources import version_of

OWNER_PREFIX = "argo"
TRACE_ANNOTATION = "workflows.argoproj.io/trace-id"
"""Argo 4.1 annotates the workflows that it traces."""
_ENDED = frozenset({"Succeeded", "Failed", "Error", "Skipped", "Omitted"})
_RETRY = re.compile(r"\(\d+\)")


@dataclass(frozen=True)
class StepAttempt:
    """A step as the workflow knows it.

    Attributes:
        key: identifies its node.
        path: the node's name without retry numbers, the same for all attempts of the step.
        started: when this attempt began, as the workflow writes it.
        trace_id: id of the workflow's trace; "" if Argo does not trace it.
    """

    key: TaskKey
    path: str
    started: str
    trace_id: str = field(default="", compare=False)

    def identity(self, on_cancel: CancelAction) -> StageIdentity:
        """The owner annotations of the step's object.

        If a step runs again, the result of its earlier attempt has been delivered. So a finished object of
        that attempt is replaced.
        """
        namespace, name, uid = self.key.workflow
        attempt = f"{self.key.node}@{self.started}"
        return StageIdentity(
            owner=f"{OWNER_PREFIX}/{namespace}/{name}/{uid}/{self.path}",
            attempt=attempt,
            rerun=True,
            on_cancel=on_cancel,
            trace=traceparent_of(self.trace_id, attempt),
        )


def workflow_has_ended(workflow: Mapping[str, Any]) -> bool:
    """Whether the workflow no longer waits for any step. Its task set may not show that; see `progress`."""
    return (workflow.get("status") or {}).get("phase") in _ENDED


def step_of(workflow: Mapping[str, Any], task: OpenTask) -> StepAttempt | None:
    """The step of a task; None if the workflow does not wait for it yet, or no longer waits for it.

    The controller writes the task set first and the workflow after it. A result for a node that the workflow
    does not have yet makes the controller stop reading any results of this workflow, so nothing is reported
    before the node exists. If the controller could not write the task set, a node that has ended still has
    its task; a result would revive the node.

    Nodes that the controller keeps in a database, or compresses by other means than gzip, can't be read here.
    In that case the node's id, a hash of the node's name, identifies the step, and the time at which the
    workflow (re)started identifies the attempt.
    """
    if workflow_has_ended(workflow):
        return None
    status = workflow.get("status") or {}
    trace_id = str((workflow["metadata"].get("annotations") or {}).get(TRACE_ANNOTATION) or "")
    nodes = nodes_of(status)
    if nodes is None:
        if version_of(workflow) <= task.version:
            return None
        return StepAttempt(task.key, task.key.node, str(status.get("startedAt") or ""), trace_id)
    node = nodes.get(task.key.node)
    if node is None or node.get("phase") in _ENDED:
        return None
    path = _RETRY.sub("", str(node.get("name") or task.key.node))
    return StepAttempt(task.key, path, str(node.get("startedAt") or ""), trace_id)


def field_of(workflow: Mapping[str, Any], node: str, field: str) -> str:
    """A field of a node, such as ``phase`` or ``message``; "" if it is missing or can't be read."""
    nodes = nodes_of(workflow.get("status") or {}) or {}
    return str((nodes.get(node) or {}).get(field) or "")


def deadline_of(workflow: Mapping[str, Any]) -> float | None:
    """Unix time of the workflow's deadline; None if it has none.

    For a workflow made from a template, the status contains the spec that the controller merged from both. It
    has the workflow's own value or else the template's.
    """
    status = workflow.get("status") or {}
    specs = (status.get("storedWorkflowTemplateSpec") or {}, workflow.get("spec") or {})
    seconds = next(
        (s["activeDeadlineSeconds"] for s in specs if s.get("activeDeadlineSeconds") is not None), None
    )
    started = status.get("startedAt")
    if seconds is None or not started or status.get("finishedAt"):
        return None
    return dt.datetime.fromisoformat(str(started)).timestamp() + float(seconds)


def task_of_marks(owner: str, attempt: str) -> TaskKey | None:
    """The task that an object's owner and attempt annotations name; None if they are not those of an Argo
    step."""
    parts = owner.split("/", 4)
    node, at, _started = attempt.partition("@")
    if len(parts) != 5 or parts[0] != OWNER_PREFIX or not at:
        return None
    return TaskKey(WorkflowKey(*parts[1:4]), node)
