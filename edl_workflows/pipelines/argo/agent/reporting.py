"""Writes the results of steps, or a message about one, into their task set, but never for a step that no
longer exists."""

from collections.abc import Mapping
from typing import Any

from edl_workflows.core.exceptions import ConflictError, NotFoundError, UnavailableError
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.tasks import PENDING, TaskKey, WorkflowKey, is_result, open_tasks
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS, WORKFLOWS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.informer_group import NamespacedInformer
from edl_workflows.runtime.kube.resources import Object

ATTEMPTS = 20
"""Attempts to write entries. Argo's controller writes the same object, and of two writes only one
succeeds."""

Entry = dict[str, Any] | None
"""An entry of ``status.nodes``; None removes it."""


def find_workflow(cluster: Cluster, key: WorkflowKey) -> Object | None:
    """The workflow as the API server has it now; None if it is gone."""
    workflow = client.find(cluster, WORKFLOWS, key.name, key.namespace)
    return workflow if workflow is not None and workflow["metadata"]["uid"] == key.uid else None


def report_results(
    cluster: Cluster, task_sets: NamespacedInformer, results: Mapping[TaskKey, StepResult]
) -> set[TaskKey]:
    """Write results of steps of one workflow, in one request. They may be written more than once.

    A late result would revive a step that Argo has ended in the meantime. So the write carries the
    resourceVersion of the task set that held the tasks: it is rejected if anything has changed since.

    Args:
        cluster: the API server.
        task_sets: the watch of the task sets. Its cache is read in place of the API server, and takes in the
            response.
        results: the results by task.

    Returns:
        The tasks whose results were written; the others are gone.

    Raises:
        EdlError: the API server rejected the write for another reason.
    """
    return _write_entries(cluster, task_sets, {key: result.to_node() for key, result in results.items()})


def report_progress(cluster: Cluster, task_sets: NamespacedInformer, key: TaskKey, message: str) -> bool:
    """Write a message about a step that waits; see `report_results`.

    Args:
        cluster: the API server.
        task_sets: the watch of the task sets.
        key: the step. No message is written once its result is.
        message: as `results.inert_message` returned it.
    """
    entry = {"phase": PENDING, "message": message}
    return bool(_write_entries(cluster, task_sets, {key: entry}))


def remove_progress(cluster: Cluster, task_sets: NamespacedInformer, key: TaskKey) -> bool:
    """Remove the message about a step; see `report_progress`."""
    return bool(_write_entries(cluster, task_sets, {key: None}))


def _write_entries(
    cluster: Cluster, task_sets: NamespacedInformer, entries: Mapping[TaskKey, Entry]
) -> set[TaskKey]:
    """Write or remove entries of open tasks of one workflow. Return the tasks whose entries were written."""
    workflow = next(iter(entries)).workflow
    task_set = task_sets.get(workflow.task_set)
    for _attempt in range(ATTEMPTS):
        writable = {} if task_set is None else _writable_entries(task_set, entries)
        if task_set is None or not writable:
            return set()
        try:
            task_sets.put(_patch(cluster, task_set, writable))
        except ConflictError:
            task_set = client.find_listed(cluster, WORKFLOW_TASK_SETS, workflow.name, workflow.namespace)
        except NotFoundError:
            return set()
        else:
            return set(writable)
    raise UnavailableError(
        f"workflow {workflow}: its task set changed {ATTEMPTS} times while results were being written"
    )


def _writable_entries(task_set: Object, entries: Mapping[TaskKey, Entry]) -> dict[TaskKey, Entry]:
    """The entries of tasks that are open. An entry that is a result is only replaced by another result."""
    tasks = open_tasks(task_set)
    return {
        key: entry
        for key, entry in entries.items()
        if key in tasks and (is_result(entry) or not tasks[key].reported)
    }


def _patch(cluster: Cluster, task_set: Object, entries: Mapping[TaskKey, Entry]) -> Object:
    metadata = task_set["metadata"]
    body = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"nodes": {key.node: entry for key, entry in entries.items()}},
    }
    return client.patch(cluster, WORKFLOW_TASK_SETS, metadata["name"], body, metadata["namespace"], "status")
