"""A step as a ``plugin`` template: a task that our agent carries out. It costs no pod while it waits."""

from collections.abc import Mapping
from typing import Any

from edl_workflows.pipelines.argo.plugin_task import PLUGIN
from edl_workflows.pipelines.argo.templates.manifest_text import manifest_text
from edl_workflows.pipelines.argo.templates.outputs import PARAMETERS
from edl_workflows.pipelines.argo.templates.step import StepInput, WorkflowStep, render_inputs


def plugin_templates(step: WorkflowStep) -> list[dict[str, Any]]:
    """The step's one template."""
    template: dict[str, Any] = {
        "name": step.name,
        "inputs": {"parameters": render_inputs(step.inputs)},
        # Only this ends a task: Argo does not check the workflow's own deadline while only plugin nodes wait.
        "timeout": "{{inputs.parameters.timeout}}",
        "plugin": {
            PLUGIN: {
                "stage": step.stage,
                "request": {name: _value(value) for name, value in step.request.items()},
                "onCancel": step.on_cancel,
                "wait": step.wait,
            }
        },
        "outputs": {
            "parameters": [
                {"name": name, "valueFrom": {"supplied": {}, "default": ""}} for name in PARAMETERS
            ]
        },
    }
    if step.retries:
        template["retryStrategy"] = {"limit": step.retries, "retryPolicy": "OnFailure"}
    return [template | step.render_limits()]


def _value(value: Any) -> Any:
    match value:
        case StepInput():
            return value.tag
        case Mapping():
            return manifest_text(value)
        case _:
            return value
