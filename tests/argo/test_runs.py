"""What a workflow's status tells, plain or compressed."""

import base64
import gzip
import json
from typing import Any

from edl_workflows.pipelines.argo import runs
from edl_workflows.pipelines.argo.nodes import nodes_of

NODES: dict[str, Any] = {
    "w": {
        "id": "w",
        "name": "w",
        "type": "DAG",
        "phase": "Running",
        "outputs": {"parameters": [{"name": "phase", "value": "Succeeded"}, {"name": "step"}]},
    },
    "w-2": {"id": "w-2", "name": "w.wait(0)", "type": "Plugin", "startedAt": "2026-01-01T00:00:02Z"},
    "w-1": {
        "id": "w-1",
        "name": "w.submit",
        "type": "Pod",
        "phase": "Failed",
        "message": "no",
        "startedAt": "2026-01-01T00:00:01Z",
    },
}


def _workflow(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "status": status}


def test_nodes_are_read_however_they_are_kept() -> None:
    """The nodes of a workflow are read both plain and compressed. Nodes that are stored in a database are
    unknown, which differs from none."""
    packed = base64.b64encode(gzip.compress(json.dumps(NODES).encode())).decode()

    assert nodes_of({"nodes": NODES}) == nodes_of({"compressedNodes": packed}) == NODES
    assert nodes_of({}) == {}
    assert nodes_of({"offloadNodeStatusVersion": "fnv:1"}) is None
    assert nodes_of({"compressedNodes": "KLUv/QBYAA=="}) is None


def test_steps_are_told_in_order_and_once() -> None:
    """Each change of a step gives one line, in order. Steps that only group others give none."""
    last_states: dict[str, runs.StepState] = {}
    workflow = _workflow(nodes=NODES)

    assert list(runs.changed_steps(workflow, last_states)) == ["submit: Failed: no", "wait(0): Pending"]
    assert list(runs.changed_steps(workflow, last_states)) == []
    changed = {**NODES, "w-2": {**NODES["w-2"], "phase": "Succeeded"}}
    assert list(runs.changed_steps(_workflow(nodes=changed), last_states)) == ["wait(0): Succeeded"]


def test_a_step_with_retries_that_waits_for_a_lock_is_told() -> None:
    """A step with retries that waits for a lock has no attempt yet, so its own message is shown. Once there
    is an attempt, its message is shown."""
    last_states: dict[str, runs.StepState] = {}
    waiting = {
        "id": "w-3",
        "name": "w.train",
        "type": "Retry",
        "phase": "Pending",
        "message": "Waiting for q",
    }
    attempt = {"id": "w-4", "name": "w.train(0)", "type": "Pod", "phase": "Running"}
    begun = {**waiting, "phase": "Running", "message": "", "children": ["w-4"]}

    assert list(runs.changed_steps(_workflow(nodes={"w-3": waiting}), last_states)) == [
        "train: Pending: Waiting for q"
    ]
    after = _workflow(nodes={"w-3": begun, "w-4": attempt})
    assert list(runs.changed_steps(after, last_states)) == ["train(0): Running"]


def test_outputs_and_phase() -> None:
    """Outputs are those of the entrypoint. A workflow that no controller has seen is Pending."""
    assert runs.outputs_of(_workflow(nodes=NODES)) == {"phase": "Succeeded", "step": ""}
    assert runs.outputs_of({"metadata": {"name": "w"}}) == {}
    assert runs.phase_of(_workflow(phase="Running")) == "Running"
    assert runs.phase_of({"metadata": {"name": "w"}}) == "Pending"
