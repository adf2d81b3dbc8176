"""Writing the result of a step into its task set, but never for a step that no longer exists."""

from edl_workflows.argo.agent.results import StepResult
from edl_workflows.argo.agent.tasks import TaskKey, open_tasks
from edl_workflows.argo.api import WORKFLOW_TASK_SETS
from edl_workflows.exceptions import ConflictError, NotFoundError, UnavailableError
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.informer import Informer
from edl_workflows.kube.resources import Object

ATTEMPTS = 20
"""Steps of one workflow that end at the same moment write to the same object; in each round one of them
succeeds."""


def report_result(cluster: Cluster, task_sets: Informer, key: TaskKey, result: StepResult) -> bool:
    """Write a result, at least once.

    A late result would revive a step that Argo has ended in the meantime. So the write carries the
    resourceVersion of the task set that held the task: it is rejected if anything has changed since.

    Args:
        cluster: where.
        task_sets: their watch; its cache saves the read, and takes the answer in.
        key: the task.
        result: its end.

    Returns:
        Whether it was written; False: the task is gone.

    Raises:
        EdlError: the server did not take it for another reason.
    """
    found = task_sets.cache.get(key.workflow.task_set)
    for _attempt in range(ATTEMPTS):
        if found is None or key not in open_tasks(found):
            return False
        try:
            task_sets.put(_write(cluster, found, key, result))
        except ConflictError:
            found = client.find_listed(cluster, WORKFLOW_TASK_SETS, key.workflow.name, key.workflow.namespace)
        except NotFoundError:
            return False
        else:
            return True
    raise UnavailableError(f"{key}: its task set changed {ATTEMPTS} times while the result was being written")


def _write(cluster: Cluster, task_set: Object, key: TaskKey, result: StepResult) -> Object:
    metadata = task_set["metadata"]
    body = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"nodes": {key.node: result.to_node()}},
    }
    return client.patch(cluster, WORKFLOW_TASK_SETS, metadata["name"], body, metadata["namespace"], "status")
