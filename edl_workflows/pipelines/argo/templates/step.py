"""The step model: a stage as a step of a workflow, before it is decided how the step waits.

A step has its inputs, the stage's request, and what a ``resource`` template does for the same purpose.
`plugin_template` and `resource_template` render it; both have the same inputs and the same outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edl_workflows.pipelines.waiting.ownership import CancelAction

__all__ = ["WaitMode"]

MEMO_AGE = "8760h"
"""How long Argo reuses outputs: a year. To train again earlier, remove the entry from the ConfigMap."""

QUEUE_KEY = "jobs"
"""Key in a ConfigMap that says how many jobs run at a time."""

WaitMode = Literal["resource", "plugin"]
"""How a step waits: in a pod of Argo that polls (any stock Argo), or as a task of our agent (no pod)."""


@dataclass(frozen=True)
class StepInput:
    """An input parameter of a template.

    Attributes:
        name: name of the parameter.
        description: what it is for, shown by Argo's UI.
        kind: how a manifest contains its text: as a string, as a number, or as YAML.
        default: None makes it required; "" leaves the field out.
    """

    name: str
    description: str
    kind: Literal["text", "integer", "yaml"] = "text"
    default: str | None = None

    @property
    def tag(self) -> str:
        """The tag that Argo replaces by the value."""
        return f"{{{{inputs.parameters.{self.name}}}}}"

    @property
    def variable(self) -> str:
        """The value in an expression."""
        return f"inputs.parameters['{self.name}']"


@dataclass(frozen=True)
class ApplyObject:
    """Create the object, or adopt the one of an earlier attempt of the step.

    Attributes:
        manifest: the object, see `manifest_text`.
        success, failure: conditions on its status; "" for a step that does not wait.
        first: a patch of another object that is applied first; empty: none.
    """

    manifest: Mapping[str, Any]
    success: str = ""
    failure: str = ""
    first: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GetObject:
    """Read an object until the conditions hold; once if there are none.

    Attributes:
        manifest: which object.
        success, failure: as of `ApplyObject`.
    """

    manifest: Mapping[str, Any]
    success: str = ""
    failure: str = ""


@dataclass(frozen=True)
class PatchObject:
    """Patch an object, and wait for conditions on the status that its controller has written for the patched
    spec, not for the old one.

    Attributes:
        manifest: what is patched.
        success, failure: conditions on its status; "" for a step that does not wait.
    """

    manifest: Mapping[str, Any]
    success: str = ""
    failure: str = ""


@dataclass(frozen=True)
class DeleteObject:
    """Delete an object and wait until it is gone with all that it owns."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class CancelJob:
    """End the workflow's own job if it has not ended, that is, if its output ``phase`` is neither empty nor
    final.

    Attributes:
        manifest: which object.
        policy: the input that says delete, suspend or keep.
        suspension: the patch of the job's spec that suspends it.
    """

    manifest: Mapping[str, Any]
    policy: StepInput
    suspension: Mapping[str, Any]


@dataclass(frozen=True)
class StepMemo:
    """Argo's memoization of a step's outputs.

    Attributes:
        config_map: where Argo keeps them.
        inputs: the inputs that the outputs depend on.
    """

    config_map: str
    inputs: tuple[StepInput, ...]

    def render(self) -> dict[str, Any]:
        """The template's ``memoize`` field. The key is a hash, because Argo allows letters, digits and ``-``
        in it."""
        values = ", ".join(step_input.variable for step_input in self.inputs)
        return {
            "key": f"{{{{=sprig.sha256sum(toJson([{values}]))}}}}",
            "maxAge": MEMO_AGE,
            "cache": {"configMap": {"name": self.config_map}},
        }


ResourceAction = ApplyObject | GetObject | PatchObject | DeleteObject | CancelJob


@dataclass(frozen=True)
class WorkflowStep:
    """A stage as a step.

    Attributes:
        name: name of the template.
        stage: the stage's name, as in `stages.catalog`.
        inputs: inputs of the template, always including ``timeout``.
        request: the stage's request: constants, `StepInput.tag` texts, or an `StepInput` or a manifest for a
            `manifest_text`.
        action: what a resource template does; None if only the agent can run the stage.
        outputs: by output parameter, a constant text, or ``jq:`` and a jq filter to apply to the object.
        wait: whether to wait for the stage's goal. If not, the step ends once the stage has begun.
        on_cancel: see `argo.plugin_task.PluginTask`.
        retries: how often the stage is run again after it failed (plugin only). Resource templates only retry
            infrastructure failures.
        memo: where to find the outputs of an earlier run; None: run each time.
        queue: ConfigMap whose key `QUEUE_KEY` is the number of such steps that run at a time; "" for no
            limit.
    """

    name: str
    stage: str
    inputs: tuple[StepInput, ...]
    request: Mapping[str, Any]
    action: ResourceAction | None
    outputs: Mapping[str, str]
    wait: bool = True
    on_cancel: CancelAction = "delete"
    retries: int = 0
    memo: StepMemo | None = None
    queue: str = ""

    def render_limits(self) -> dict[str, Any]:
        """The fields of a template by which Argo delays it (queue) or reuses earlier outputs instead of
        running it."""
        held = {"configMapKeyRef": {"name": self.queue, "key": QUEUE_KEY}}
        queue = {"synchronization": {"semaphores": [held]}} if self.queue else {}
        return queue | ({"memoize": self.memo.render()} if self.memo else {})


def render_inputs(inputs: tuple[StepInput, ...]) -> list[dict[str, str]]:
    """Inputs as Argo's ``inputs.parameters``."""
    return [
        {"name": step_input.name, "description": step_input.description}
        | ({} if step_input.default is None else {"default": step_input.default})
        for step_input in inputs
    ]
