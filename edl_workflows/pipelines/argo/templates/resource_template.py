"""Renders a step as ``resource`` templates. They work on any stock Argo 4, but cost a pod that polls while
the step waits.

docs/explanation/argo-steps.md describes what such a template can't do, and how ours differ from handwritten
ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.templates.manifest_text import manifest_text
from edl_workflows.pipelines.argo.templates.outputs import PARAMETERS
from edl_workflows.pipelines.argo.templates.step import (
    ApplyObject,
    CancelJob,
    DeleteObject,
    GetObject,
    PatchObject,
    ResourceAction,
    StepInput,
    WorkflowStep,
    render_inputs,
)

LOST_POD_RETRIES = 5
"""Retries of a step whose pod was lost. Each retry repeats the request and finds the object that the previous
attempt created."""
FINAL_MESSAGES = (
    "failure condition",
    "has been deleted",
    "deadline",
    "Apply failed",
    "is invalid",
    "BadRequest",
    "Forbidden",
    "NotFound",
    "failed to parse",
    "error validating",
    "strict decoding error",
)
"""Texts in the messages of attempts that fail permanently: the job failed, or the server rejected the
request."""

UNSEEN = {
    "condition": "a condition, which a resource template can't select in a list; wait for a phase or a step",
    "waitForChange": "a plan that changes something, which a resource template can't tell; take any plan",
}
"""Request fields that a label selector can't express, each with the end of the error message: what the step
waits for, and what to do instead."""
JQ = "jq:"
GENERATION = StepInput("generation", "metadata.generation that the controller must have observed", "integer")


def resource_templates(step: WorkflowStep) -> list[dict[str, Any]]:
    """The step's template, and those that it calls.

    Raises:
        InvalidError: only the agent can run the step, for example because it waits for something that a label
            selector can't express.
    """
    for field, reason in UNSEEN.items():
        if field in step.request:
            raise InvalidError(f"step {step.name!r} waits for {reason}, or by the plugin")
    if step.action is None:
        raise InvalidError(
            f"step {step.name!r} has no resource template: let the agent run it (waiting: plugin)"
        )
    if isinstance(step.action, PatchObject) and step.action.success:
        return _change(step, step.action)
    if isinstance(step.action, CancelJob):
        return _cancel(step, step.action)
    if isinstance(step.action, DeleteObject):
        return _remove(step, step.action)
    if isinstance(step.action, ApplyObject) and step.action.first:
        return _in_two(step, step.action)
    made = _template(step.name, step.action, step.inputs, _outputs(step.outputs))
    return [made | step.render_limits()]


def _template(
    name: str, action: ResourceAction, inputs: tuple[StepInput, ...], outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "inputs": {"parameters": render_inputs(inputs)},
        "timeout": "{{inputs.parameters.timeout}}",
        "retryStrategy": {
            "limit": LOST_POD_RETRIES,
            "expression": f"not (lastRetry.message matches '{'|'.join(FINAL_MESSAGES)}')",
            "backoff": {"duration": "2s", "factor": 2},
        },
        "resource": _resource(action),
        "outputs": {"parameters": outputs},
    }


def _resource(action: ResourceAction) -> dict[str, Any]:
    match action:
        case ApplyObject():
            # Server-side apply with a field manager of this workflow: if another workflow or a person created
            # an object of this name, there is a conflict. Plain apply would overwrite that object.
            flags = ["--server-side", "--field-manager=argo-{{workflow.uid}}"]
            verb: dict[str, Any] = {"action": "apply", "flags": flags}
        case GetObject():
            verb = {"action": "get"}
        case PatchObject():
            verb = {"action": "patch", "mergeStrategy": "merge"}
        case DeleteObject():
            # In the foreground, so that the object exists until its pods are gone, and kubectl waits for
            # both.
            verb = {"action": "delete", "flags": ["--cascade=foreground"]}
    conditions = {}
    if isinstance(action, ApplyObject | GetObject) and action.success:
        conditions = {"successCondition": action.success, "failureCondition": action.failure}
    return {**verb, "manifest": manifest_text(action.manifest), **conditions}


def _outputs(filters: Mapping[str, str]) -> list[dict[str, Any]]:
    return [_output(name, filters.get(name, "")) for name in PARAMETERS]


def _output(name: str, value: str) -> dict[str, Any]:
    if value.startswith(JQ):
        return {"name": name, "valueFrom": {"jqFilter": value.removeprefix(JQ)}}
    return {"name": name, "value": value}


def _change(step: WorkflowStep, action: PatchObject) -> list[dict[str, Any]]:
    """Patch, then wait until the controller has observed the patched spec. Until then, the status may belong
    to an older spec."""
    patch, wait = f"{step.name}-patch", f"{step.name}-wait"
    observed = f"status.observedGeneration > {{{{=int({GENERATION.variable}) - 1}}}}"
    look = GetObject(
        {key: value for key, value in action.manifest.items() if key != "spec"},
        f"{action.success}, {observed}",
        action.failure,
    )
    generation = [{"name": GENERATION.name, "valueFrom": {"jqFilter": ".metadata.generation"}}]
    seen = {GENERATION.name: f"{{{{steps.{patch}.outputs.parameters.generation}}}}"}
    return [
        _steps(step, [[_call(patch, step.inputs)], [_call(wait, step.inputs, seen)]], list(_passed_on(wait))),
        _template(patch, action, step.inputs, generation),
        _template(wait, look, (*step.inputs, GENERATION), _outputs(step.outputs)),
    ]


def _in_two(step: WorkflowStep, action: ApplyObject) -> list[dict[str, Any]]:
    """Patch one object, then create the other. If the workflow ends in between, only the patch has been
    made."""
    first, then = f"{step.name}-first", f"{step.name}-then"
    return [
        _steps(step, [[_call(first, step.inputs)], [_call(then, step.inputs)]], list(_passed_on(then))),
        _template(first, PatchObject(action.first), step.inputs, []),
        _template(then, action, step.inputs, _outputs(step.outputs)),
    ]


def _remove(step: WorkflowStep, action: DeleteObject) -> list[dict[str, Any]]:
    """Delete an object. A deletion has no outputs in Argo, so the surrounding step declares them."""
    delete = f"{step.name}-object"
    output_parameters = [
        {"name": name, "valueFrom": {"expression": f"'{step.outputs.get(name, '')}'"}} for name in PARAMETERS
    ]
    return [
        _steps(step, [[_call(delete, step.inputs)]], output_parameters),
        _template(delete, action, step.inputs, []),
    ]


def _steps(
    step: WorkflowStep, groups: list[list[dict[str, Any]]], outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": step.name,
        "inputs": {"parameters": render_inputs(step.inputs)},
        "steps": groups,
        "outputs": {"parameters": outputs},
    }


def _cancel(step: WorkflowStep, action: CancelJob) -> list[dict[str, Any]]:
    """Read the job's owner and phase first. Delete or suspend it only if it is the workflow's and has not
    ended."""
    look, delete, suspend = (f"{step.name}-{verb}" for verb in ("look", "delete", "suspend"))
    inputs = tuple(step_input for step_input in step.inputs if step_input != action.policy)
    looking = _template(look, GetObject(action.manifest), inputs, _outputs(step.outputs))
    looking["resource"]["flags"] = ["--ignore-not-found"]
    for output in looking["outputs"]["parameters"]:
        if "valueFrom" in output:
            output["valueFrom"]["default"] = ""
    held = {**action.manifest, "spec": action.suspension}
    ends = [
        {**_call(verb, inputs), "when": _unended(look, action.policy, policy)}
        for verb, policy in ((delete, "delete"), (suspend, "suspend"))
    ]
    return [
        _steps(step, [[_call(look, inputs)], ends], list(_passed_on(look))),
        looking,
        _template(delete, DeleteObject(action.manifest), inputs, []),
        _template(suspend, PatchObject(held), inputs, []),
    ]


def _unended(look: str, policy: StepInput, cancel_action: str) -> str:
    phase = f"steps['{look}'].outputs.parameters.phase"
    return f"{{{{={phase} not in ['', 'Succeeded', 'Failed'] && {policy.variable} == '{cancel_action}'}}}}"


def _call(name: str, inputs: tuple[StepInput, ...], more: Mapping[str, str] | None = None) -> dict[str, Any]:
    values = {step_input.name: step_input.tag for step_input in inputs} | dict(more or {})
    arguments = [{"name": key, "value": value} for key, value in values.items()]
    return {"name": name, "template": name, "arguments": {"parameters": arguments}}


def _passed_on(name: str) -> Iterator[dict[str, Any]]:
    for parameter in PARAMETERS:
        yield {
            "name": parameter,
            "valueFrom": {"parameter": f"{{{{steps.{name}.outputs.parameters.{parameter}}}}}"},
        }
