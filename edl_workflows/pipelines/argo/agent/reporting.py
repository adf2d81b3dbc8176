"""Writes the result of a step, or a message about it, into its task set, but never for a step that no longer
exists."""

from typing import Any

from edl_workflows.core.exceptions import ConflictError, NotFoundError, UnavailableError
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.tasks import PENDING, TaskKey, is_result, open_tasks
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import Object

ATTEMPTS = 20
"""Attempts to write an entry. Steps of one workflow that end at the same moment write to the same object, and
in each round only one of them succeeds."""


def report_result(cluster: Cluster, task_sets: Informer, key: TaskKey, result: StepResult) -> bool:
    """Write a result. It may be written more than once.

    A late result would revive a step that Argo has ended in the meantime. So the write carries the
    resourceVersion of the task set that held the task: it is rejected if anything has changed since.

    Args:
        cluster: the API server.
        task_sets: the watch of the task sets. Its cache is read in place of the API server, and takes in the
            response.
        key: the task.
        result: the result.

    Returns:
        Whether the result was written; False: the task is gone.

    Raises:
        EdlError: the API server rejected the write for another reason.
    """
    return _write_entry(cluster, task_sets, key, result.to_node())


def report_progress(cluster: Cluster, task_sets: Informer, key: TaskKey, message: str) -> bool:
    """Write a message about a step that waits; see `report_result`.

    Args:
        cluster: the API server.
        task_sets: the watch of the task sets.
        key: the step. No message is written once its result is.
        message: as `results.inert_message` returned it.
    """
    entry = {"phase": PENDING, "message": message}
    return _write_entry(cluster, task_sets, key, entry)


def remove_progress(cluster: Cluster, task_sets: Informer, key: TaskKey) -> bool:
    """Remove the message about a step; see `report_progress`."""
    return _write_entry(cluster, task_sets, key, None)


def _write_entry(cluster: Cluster, task_sets: Informer, key: TaskKey, entry: dict[str, Any] | None) -> bool:
    """Write or remove the entry of an open task. An entry that is a result is only replaced by another
    result."""
    final = is_result(entry)
    task_set = task_sets.cache.get(key.workflow.task_set)
    for _attempt in range(ATTEMPTS):
        task = open_tasks(task_set).get(key) if task_set is not None else None
        if task_set is None or task is None or (task.reported and not final):
            return False
        try:
            task_sets.put(_patch(cluster, task_set, key, entry))
        except ConflictError:
            task_set = client.find_listed(
                cluster, WORKFLOW_TASK_SETS, key.workflow.name, key.workflow.namespace
            )
        except NotFoundError:
            return False
        else:
            return True
    raise UnavailableError(f"{key}: its task set changed {ATTEMPTS} times while its entry was being written")


def _patch(cluster: Cluster, task_set: Object, key: TaskKey, entry: dict[str, Any] | None) -> Object:
    metadata = task_set["metadata"]
    body = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"nodes": {key.node: entry}},
    }
    return client.patch(cluster, WORKFLOW_TASK_SETS, metadata["name"], body, metadata["namespace"], "status")
