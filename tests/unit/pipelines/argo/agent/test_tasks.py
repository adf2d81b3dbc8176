"""Which changes of a task set the agent looks at."""

from typing import Any

import pytest

from edl_workflows.pipelines.argo.agent.tasks import asks_for_turn
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.watch import EventType

OWNER = {"kind": "Workflow", "name": "w", "uid": "1"}
STEP = {"plugin": {"edl": {"stage": "wait"}}}


def _task_set(
    version: int, tasks: Any = None, nodes: Any = None, labels: Any = None, **metadata: Any
) -> dict[str, Any]:
    own = {"name": "w", "namespace": "ns", "resourceVersion": str(version), "ownerReferences": [OWNER]}
    return {
        "metadata": {**own, "labels": labels or {}, **metadata},
        "spec": {"tasks": {"n1": STEP} if tasks is None else tasks},
        "status": {"nodes": nodes or {}},
    }


@pytest.mark.parametrize(
    ("new", "asks"),
    [
        pytest.param(
            _task_set(2, nodes={"n1": {"phase": "Pending", "message": "runs"}}), False, id="message"
        ),
        pytest.param(_task_set(2, managedFields=[{"manager": "argo"}]), False, id="managed fields"),
        pytest.param(
            _task_set(2, tasks={"n1": STEP, "h": {"http": {}}}), False, id="a task of another agent"
        ),
        pytest.param(_task_set(2, nodes={"n1": {"phase": "Succeeded"}}), True, id="a result"),
        pytest.param(_task_set(2, tasks={"n1": STEP, "n2": STEP}), True, id="a new task"),
        pytest.param(_task_set(2, tasks={}), True, id="a task that vanishes"),
        pytest.param(_task_set(2, tasks={"n1": {"plugin": {"edl": {}}}}), True, id="another step"),
        pytest.param(_task_set(2, labels={"workflows.argoproj.io/completed": "true"}), True, id="the end"),
        pytest.param(_task_set(2, deletionTimestamp="2026-01-01T00:00:00Z"), True, id="a deletion"),
        pytest.param(_task_set(2, ownerReferences=[{**OWNER, "uid": "2"}]), True, id="another workflow"),
    ],
)
def test_only_changes_of_tasks_ask_for_a_turn(new: dict[str, Any], asks: bool) -> None:
    """The agent's own messages about waiting steps come back as events, which cost it nothing. Tasks that
    come, go or are answered do."""
    old = _task_set(1)

    assert asks_for_turn(ObjectChange(EventType.MODIFIED, new, old)) is asks
    assert asks_for_turn(ObjectChange(EventType.ADDED, old))
    assert asks_for_turn(ObjectChange(EventType.DELETED, old, old))
