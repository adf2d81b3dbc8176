"""What a step's node says: where training is and why, bounded, and with nothing that Argo or a terminal acts
on."""

import json
from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.exceptions import JobFailedError
from edl_workflows.core.jobs.view import Checkpoint, JobPhase, JobView, Progress
from edl_workflows.pipelines.argo.agent.results import MAX_MESSAGE, result_of_error, result_of_stage
from edl_workflows.pipelines.argo.templates.outputs import PARAMETERS
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.pipelines.waiting.outputs import MAX_WARNING, MAX_WARNINGS
from edl_workflows.pipelines.waiting.results import evaluate_goal

_DONE = JobView("ElasticJob", "mnist", "default", "uid-1", 1, 1, JobPhase.SUCCEEDED)
_HANDLE = Handle(
    kind="ElasticJob",
    namespace="default",
    name="mnist",
    uid="uid-1",
    goal=JobGoal(phases=(JobPhase.SUCCEEDED,)),
)
HOSTILE = {
    "a tag": "{{workflow.parameters.token}}",
    "an expression": "{{=sprig.env('HOME')}}",
    "many braces": "{{{{{{x}}}}}}",
    "a terminal's commands": "\x1b]0;owned\x07\x1b[2J",
    "another direction": "\u202egnp.exe",
    "a lone surrogate": "\ud800",
    "megabytes": "{" * 2_000_000,
}


def _node(**changes: Any) -> dict[str, Any]:
    return result_of_stage(evaluate_goal(_HANDLE, replace(_DONE, **changes))).to_node()


def _values(node: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in node["outputs"]["parameters"]}


def _check_harmless(text: str) -> None:
    assert "{{" not in text
    assert all(character.isprintable() or character in "\n\t" for character in text)
    text.encode()


def test_the_node_tells_how_far_training_came() -> None:
    """The node's message tells people the step, metrics and warnings, and its outputs have them for later
    steps."""
    node = _node(
        progress=Progress(step=1240, records=99, metrics={"accuracy": 0.98, "loss": 0.12}),
        checkpoint=Checkpoint("/ck/1200", 1200),
        warnings=("the disk is full", "ps-0 is slow"),
    )
    values = _values(node)

    assert node["message"] == (
        "ElasticJob default/mnist Succeeded; step 1,240; loss 0.12, accuracy 0.98; checkpoint at step 1,200; "
        "warns: the disk is full; ps-0 is slow"
    )
    assert tuple(values) == PARAMETERS
    assert json.loads(values["training-metrics"]) == {"accuracy": 0.98, "loss": 0.12}
    assert values["warnings"] == "the disk is full; ps-0 is slow"


def test_a_step_that_does_not_wait_says_why_its_job_does() -> None:
    """The message of a step that does not wait has the reason why its job is queued."""
    node = _node(phase=JobPhase.PENDING, reason="Unschedulable", message="0/3 nodes are available")

    assert node["message"].startswith("ElasticJob default/mnist is Pending")
    assert "0/3 nodes are available" in node["message"]


@pytest.mark.parametrize("row", HOSTILE)
def test_hostile_warnings_and_reasons_are_text(row: str) -> None:
    """Hostile text in warnings and reasons is escaped, bounded, and without anything that Argo expands, in
    the message and in each output."""
    text = HOSTILE[row]
    queued = {"phase": JobPhase.PENDING, "reason": text, "message": text}
    for node in (_node(warnings=(text,) * 1000), _node(warnings=(text,), **queued)):
        assert len(node["message"]) <= MAX_MESSAGE
        for value in (node["message"], *_values(node).values()):
            _check_harmless(value)
        assert len(json.dumps(node)) < 6 * MAX_WARNINGS * MAX_WARNING + 6 * MAX_MESSAGE


@pytest.mark.parametrize("row", HOSTILE)
def test_the_end_of_a_failed_job_is_text(row: str) -> None:
    """The message of a failed step contains what the job's pods said."""
    node = result_of_error(JobFailedError(HOSTILE[row])).to_node()

    assert node["phase"] == "Failed"
    assert len(node["message"]) <= MAX_MESSAGE
    _check_harmless(node["message"])
