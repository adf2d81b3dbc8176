"""Objects that steps made: found by their marks, and ended when their step is gone.

The marks are all that an agent needs after a restart: whose an object is, which attempt of it, and what becomes of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import get_args

from edl_workflows.argo.agent.tasks import TaskKey, ended, open_tasks, workflow_of
from edl_workflows.argo.agent.workflow import OWNER_PREFIX, phase_of, task_of_marks
from edl_workflows.argo.api import WORKFLOW_TASK_SETS, WORKFLOWS
from edl_workflows.exceptions import EdlError, NotFoundError
from edl_workflows.jobs.kinds import KINDS
from edl_workflows.jobs.manifests import terminating
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object, Scope
from edl_workflows.stages import ownership
from edl_workflows.stages.goals import ExistsGoal, Handle, finished, observe
from edl_workflows.stages.identity import ATTEMPT_ANNOTATION, ON_CANCEL_ANNOTATION, OWNER_ANNOTATION
from edl_workflows.stages.ownership import CancelAction


@dataclass(frozen=True)
class Begun:
    """An object that a step made.

    Attributes:
        key: the step.
        handle: the object.
        action: what becomes of it when the step is cancelled.
    """

    key: TaskKey
    handle: Handle
    action: CancelAction

    def cancel(self, cluster: Cluster) -> bool:
        """End it, if it is still the step's and still goes on; whether something was done."""
        return ownership.cancel(cluster, self.handle, self.action)


class Verdict(Enum):
    """What is to be done about an object whose step no agent serves."""

    ALIVE = auto()
    """Its task is there, and will be served."""
    LEFT = auto()
    """Its step ended in Error while the workflow goes on: a retry takes it over."""
    ORPHANED = auto()


def begun(cluster: Cluster, namespace: str, of: Callable[[TaskKey], bool]) -> list[Begun]:
    """The objects of a namespace, or of all, that steps made, that go on, and that a cancellation of their step would end.

    Args:
        cluster: where.
        namespace: or `ALL_NAMESPACES`.
        of: which steps.
    """
    listed = (obj for kind in KINDS for obj in _served(cluster, Scope(kind.source.api, namespace)))
    return [found for obj in listed for found in _read(obj) if of(found.key) and _goes_on(obj)]


def judge(cluster: Cluster, found: Begun) -> Verdict:
    """Whether an object's step is gone, as the server says now and not as a watch that may lag behind."""
    workflow = found.key.workflow
    task_set = client.find_listed(cluster, WORKFLOW_TASK_SETS, workflow.name, workflow.namespace)
    if task_set is None or workflow_of(task_set) != workflow or ended(task_set):
        return Verdict.ORPHANED
    if found.key in open_tasks(task_set):
        return Verdict.ALIVE
    seen = client.find(cluster, WORKFLOWS, workflow.name, workflow.namespace)
    in_error = seen is not None and phase_of(seen, found.key.node) == "Error"
    return Verdict.LEFT if in_error else Verdict.ORPHANED


def _served(cluster: Cluster, scope: Scope) -> list[Object]:
    """The objects of a kind; none of one that is not installed."""
    try:
        return client.list_objects(cluster, scope).items
    except NotFoundError:
        return []


def _goes_on(obj: Object) -> bool:
    if terminating(obj):
        return False
    try:
        seen = observe(obj["kind"], obj)
    except EdlError:
        return True  # of another version of this package: who cancels it will say so
    return seen is not None and not finished(seen)


def _read(obj: Object) -> Iterator[Begun]:
    metadata = obj["metadata"]
    marks = metadata.get("annotations") or {}
    owner, attempt = marks.get(OWNER_ANNOTATION, ""), marks.get(ATTEMPT_ANNOTATION, "")
    action = marks.get(ON_CANCEL_ANNOTATION, "keep")
    key = task_of_marks(owner, attempt) if owner.startswith(f"{OWNER_PREFIX}/") else None
    if key is None or action == "keep" or action not in get_args(CancelAction):
        return
    handle = Handle(
        kind=obj["kind"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        goal=ExistsGoal(),
        uid=metadata["uid"],
        owner=owner,
        attempt=attempt,
    )
    yield Begun(key, handle, action)
