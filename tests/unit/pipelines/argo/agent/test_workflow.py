"""What is read from Workflow objects: who a step is, and when the workflow's time is up."""

import base64
import gzip
import json
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError, JobFailedError
from edl_workflows.pipelines.argo.agent.results import MAX_MESSAGE, StepResult, result_of_error
from edl_workflows.pipelines.argo.agent.tasks import OpenTask, TaskKey, WorkflowKey
from edl_workflows.pipelines.argo.agent.workflow import deadline_of, step_of, task_of_marks

KEY = TaskKey(WorkflowKey("ns", "w", "uid"), "w-1")
TASK = OpenTask(KEY, {}, reported=False, version=5)


def workflow(version: int = 9, /, **status: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "spec": {}, "status": status}


def node(name: str, phase: str = "Pending", started: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"w-1": {"name": name, "phase": phase, "startedAt": started}}


TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("w[0].train", "w[0].train"),
        ("w[0].train(1)", "w[0].train"),
        ("w(2)[0].train(1)", "w[0].train"),
        ("w[0].train(0:a)", "w[0].train(0:a)"),
        ("w[0].train(0:a)(3)", "w[0].train(0:a)"),
    ],
)
def test_attempts_of_a_step_have_one_owner_and_items_of_a_loop_their_own(name: str, path: str) -> None:
    """All attempts of a step have the same owner, whichever step or group is retried. Each item of a loop has
    an owner of its own."""
    step = step_of(workflow(nodes=node(name)), TASK)
    assert step is not None
    identity = step.identity("suspend")
    assert identity.owner == f"argo/ns/w/uid/{path}"
    assert identity.attempt == "w-1@2026-01-01T00:00:00Z"
    assert (identity.rerun, identity.on_cancel) == (True, "suspend")
    assert task_of_marks(identity.owner, identity.attempt) == KEY


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Error", "Skipped", "Omitted"])
def test_a_step_that_has_ended_is_not_waited_for(phase: str) -> None:
    """A step that has ended, or does not exist yet, is not waited for."""
    assert step_of(workflow(nodes=node("w.a", phase)), TASK) is None
    assert step_of(workflow(nodes={}), TASK) is None
    assert step_of(workflow(), TASK) is None


def test_nodes_may_be_compressed() -> None:
    """The nodes of a large workflow, which Argo's controller compresses with gzip by default, are read."""
    packed = base64.b64encode(gzip.compress(json.dumps(node("w.a(0)")).encode())).decode()
    step = step_of(workflow(compressedNodes=packed), TASK)
    assert step is not None
    assert step.path == "w.a"


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"offloadNodeStatusVersion": "fnv:1"}, id="in a database"),
        pytest.param({"compressedNodes": base64.b64encode(b"\x28\xb5\x2f\xfd..").decode()}, id="by zstd"),
        pytest.param({"compressedNodes": "?"}, id="no base64"),
        pytest.param({"compressedNodes": base64.b64encode(gzip.compress(b"[]")).decode()}, id="no map"),
    ],
)
def test_where_nodes_cannot_be_read_the_node_id_names_the_step(status: dict[str, Any]) -> None:
    """If nodes can't be read, the workflow's start tells attempts apart. The Workflow that is read must be
    newer than the task set with the task."""
    started = {"startedAt": "2026-01-03T00:00:00Z"}
    step = step_of(workflow(**status, **started), TASK)
    assert step is not None
    assert (step.path, step.started) == ("w-1", "2026-01-03T00:00:00Z")
    assert step_of(workflow(4, **status, **started), TASK) is None


@pytest.mark.parametrize(
    ("spec", "status", "deadline"),
    [
        ({"activeDeadlineSeconds": 60}, {}, 60.0),
        ({"activeDeadlineSeconds": 60}, {"finishedAt": "1970-01-01T00:00:30Z"}, None),
        ({}, {}, None),
        ({}, {"storedWorkflowTemplateSpec": {"activeDeadlineSeconds": 5}}, 5.0),
        ({"activeDeadlineSeconds": 0}, {}, 0.0),
    ],
)
def test_deadline(spec: dict[str, Any], status: dict[str, Any], deadline: float | None) -> None:
    """The deadline counts from the workflow's start. If a template gives it, the value that the controller
    stored counts."""
    found = {"spec": spec, "status": {"startedAt": "1970-01-01T00:00:00Z", **status}}
    assert deadline_of(found) == deadline
    assert deadline_of({"spec": spec}) is None


def test_what_is_to_blame_is_told_apart() -> None:
    """Failed means a failure of the step, and Error one of the infrastructure or of ours. Argo's retry
    policies depend on that."""
    assert result_of_error(JobFailedError("j")).phase == "Failed"
    assert result_of_error(ForbiddenError("f")).phase == "Error"
    assert result_of_error(KeyError("k")).to_node() == {
        "phase": "Error",
        "message": "the agent failed, its log tells more: KeyError: 'k'",
    }
    assert len(StepResult("Failed", "x" * 10**6).to_node()["message"]) == MAX_MESSAGE


@pytest.mark.parametrize(
    ("annotations", "trace"),
    [
        ({"workflows.argoproj.io/trace-id": TRACE_ID}, f"00-{TRACE_ID}-"),
        ({"workflows.argoproj.io/trace-id": "{{workflow.name}}"}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_the_jobs_of_a_traced_workflow_belong_to_its_trace(annotations: Any, trace: str) -> None:
    """The annotation names the trace; any other value means no trace. A step whose trace is named later is
    still the same step."""
    found = workflow(nodes=node("w[0].train"))
    later = step_of(found, TASK)
    found["metadata"]["annotations"] = annotations
    step = step_of(found, TASK)
    assert step is not None
    assert step == later
    assert step.identity("delete").trace.startswith(trace)
    assert bool(step.identity("delete").trace) == bool(trace)
