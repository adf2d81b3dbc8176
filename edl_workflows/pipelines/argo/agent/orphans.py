"""Finds the objects of steps by their owner annotations, and cancels them when their step is gone.

The annotations contain all that an agent needs after a restart: the owner, the attempt, and what to do with
the object.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast, get_args

from edl_workflows.pipelines.argo.agent.tasks import TaskKey, has_ended, open_tasks, workflow_of
from edl_workflows.pipelines.argo.agent.workflow import (
    OWNER_PREFIX,
    field_of,
    task_of_marks,
    workflow_has_ended,
)
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS, WORKFLOWS
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.ownership import CancelAction, OwnedObject, list_owned
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster


@dataclass(frozen=True)
class BegunObject:
    """An object that a step created.

    Attributes:
        key: the step.
        handle: the object.
        action: what to do with it when the step is cancelled.
    """

    key: TaskKey
    handle: Handle
    action: CancelAction

    def cancel(self, cluster: Cluster) -> bool:
        """Do `action` to the object if the step still owns it and it has not ended. Return whether anything
        was done.
        """
        return ownership.cancel_object(cluster, self.handle, self.action)


class OrphanVerdict(Enum):
    """What to do with an object whose step no agent serves."""

    ALIVE = auto()
    """The step's task exists and will be served."""
    LEFT = auto()
    """The step ended in Error while the workflow continues: a retry would adopt the object."""
    ORPHANED = auto()


def list_begun(cluster: Cluster, namespace: str, of: Callable[[TaskKey], bool]) -> list[BegunObject]:
    """Objects of steps that have not ended and that a cancellation of their step would end.

    Args:
        cluster: the cluster to search.
        namespace: the namespace to search, or `ALL_NAMESPACES`.
        of: selects the steps.
    """
    return [
        begun
        for owned_object in list_owned(cluster, namespace, OWNER_PREFIX)
        for begun in _of_step(owned_object)
        if of(begun.key)
    ]


def judge_orphan(cluster: Cluster, begun: BegunObject) -> OrphanVerdict:
    """Decide whether an object's step is gone. Read from the API server, because a watch may lag behind."""
    workflow = begun.key.workflow
    task_set = client.find_listed(cluster, WORKFLOW_TASK_SETS, workflow.name, workflow.namespace)
    if task_set is None or workflow_of(task_set) != workflow or has_ended(task_set):
        return OrphanVerdict.ORPHANED
    seen = client.find(cluster, WORKFLOWS, workflow.name, workflow.namespace)
    if seen is None or seen["metadata"]["uid"] != workflow.uid or workflow_has_ended(seen):
        return OrphanVerdict.ORPHANED
    if begun.key in open_tasks(task_set):
        return OrphanVerdict.ALIVE
    in_error = field_of(seen, begun.key.node, "phase") == "Error"
    return OrphanVerdict.LEFT if in_error else OrphanVerdict.ORPHANED


def _of_step(owned_object: OwnedObject) -> Iterator[BegunObject]:
    handle, action = owned_object.handle, owned_object.on_cancel
    key = task_of_marks(handle.owner, handle.attempt)
    if key is not None and action != "keep" and action in get_args(CancelAction):
        yield BegunObject(key, handle, cast("CancelAction", action))
