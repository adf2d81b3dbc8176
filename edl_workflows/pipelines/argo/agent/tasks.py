"""The tasks of a WorkflowTaskSet. Argo's controller writes ``spec.tasks`` by node id; an agent answers in
``status.nodes``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from edl_workflows.pipelines.argo.api import COMPLETED_LABEL
from edl_workflows.pipelines.argo.plugin_task import PLUGIN
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.resources import Object, ObjectKey, key_of, version_of
from edl_workflows.runtime.kube.watch import EventType

OPEN_INDEX = "open"
"""Name of a cache index, and its only key: the task sets with open tasks."""

PENDING = "Pending"
"""Phase of a node whose step waits."""


class WorkflowKey(NamedTuple):
    """A workflow. Its uid distinguishes it from later workflows of the same name."""

    namespace: str
    name: str
    uid: str

    @property
    def task_set(self) -> ObjectKey:
        """The key of its WorkflowTaskSet."""
        return ObjectKey(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class TaskKey(NamedTuple):
    """One plugin node of a workflow. A retry by the retryStrategy has a new node id; a manual retry of the
    workflow keeps the node's id."""

    workflow: WorkflowKey
    node: str

    def __str__(self) -> str:
        return f"{self.workflow} node {self.node}"


@dataclass(frozen=True)
class OpenTask:
    """A task in a task set.

    Attributes:
        key: identifies it.
        body: the value of ``plugin.edl`` as the user wrote it, not validated.
        reported: whether the status contains its result, which the controller has not taken yet. A message
            about a waiting step is not a result.
        version: the task set's resourceVersion.
    """

    key: TaskKey
    body: Any
    reported: bool
    version: int


def workflow_of(task_set: Mapping[str, Any]) -> WorkflowKey:
    """The workflow of a task set; the two share their name."""
    where = key_of(task_set)
    owners = task_set["metadata"].get("ownerReferences") or []
    uid = next((str(owner["uid"]) for owner in owners if owner.get("kind") == "Workflow"), "")
    return WorkflowKey(where.namespace, where.name, uid)


def has_ended(task_set: Mapping[str, Any]) -> bool:
    """Whether the workflow has ended, or is being deleted."""
    metadata = task_set["metadata"]
    done = (metadata.get("labels") or {}).get(COMPLETED_LABEL) == "true"
    return done or bool(metadata.get("deletionTimestamp"))


def open_tasks(task_set: Mapping[str, Any]) -> dict[TaskKey, OpenTask]:
    """The tasks of a task set that this agent serves, without HTTP requests and tasks of other plugins."""
    if has_ended(task_set):
        return {}
    workflow = workflow_of(task_set)
    results = (task_set.get("status") or {}).get("nodes") or {}
    version = version_of(task_set)
    tasks = (
        OpenTask(TaskKey(workflow, node), body, is_result(results.get(node)), version)
        for node, body in _bodies(task_set)
    )
    return {task.key: task for task in tasks}


def is_result(entry: Mapping[str, Any] | None) -> bool:
    """Whether an entry of ``status.nodes`` is a step's result rather than a message about a waiting step."""
    return entry is not None and entry.get("phase") != PENDING


def asks_for_turn(change: ObjectChange) -> bool:
    """Whether a change of a task set can change what the agent does: other tasks are open or answered, or the
    workflow has ended. A message about a waiting step changes nothing."""
    modified = change.type is EventType.MODIFIED
    return not modified or _decided_by(change.object) != _decided_by(change.old)


def _decided_by(task_set: Object | None) -> tuple[Any, ...]:
    if task_set is None:
        return ()
    tasks = {key: (task.body, task.reported) for key, task in open_tasks(task_set).items()}
    return workflow_of(task_set), has_ended(task_set), tasks


def index_open(task_set: Object) -> tuple[str, ...]:
    """Index function: see `OPEN_INDEX`."""
    return (OPEN_INDEX,) if open_tasks(task_set) else ()


def _bodies(task_set: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    tasks = (task_set.get("spec") or {}).get("tasks") or {}
    for node, template in tasks.items():
        plugin = (template or {}).get("plugin")
        if isinstance(plugin, dict) and PLUGIN in plugin:
            yield str(node), plugin[PLUGIN]
