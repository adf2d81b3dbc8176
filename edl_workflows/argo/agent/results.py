"""What a step ends in: a node's phase, message and output parameters, as Argo's controller copies them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from edl_workflows.argo import outputs
from edl_workflows.exceptions import EdlError, ForbiddenError, UnavailableError
from edl_workflows.stages.goals import Failed, Outputs, StageResult

MAX_MESSAGE = 2000
"""Characters. A workflow with all its nodes must fit into one object of the API server."""

NodePhase = Literal["Succeeded", "Failed", "Error"]
"""Only these are reported. A node that is reported Running escapes Argo's time-outs, and makes the controller
write the workflow anew at each pass."""


@dataclass(frozen=True)
class StepResult:
    """A step's end.

    Attributes:
        phase: Failed for what the step itself is to blame for, Error for the infrastructure; Argo's retry
            policies tell the two apart.
        message: for people.
        parameters: output parameters.
    """

    phase: NodePhase
    message: str = ""
    parameters: list[dict[str, str]] = field(default_factory=list)

    def to_node(self) -> dict[str, Any]:
        """As it stands in ``status.nodes``."""
        node: dict[str, Any] = {"phase": self.phase, "message": self.message[:MAX_MESSAGE]}
        return node | ({"outputs": {"parameters": self.parameters}} if self.parameters else {})


def result_of_outputs(found: Outputs) -> StepResult:
    """A step that reached its goal, or whose goal nobody waits for."""
    state = f" {found.phase}" if found.phase else ""
    return StepResult(
        "Succeeded", f"{found.kind} {found.namespace}/{found.name}{state}", outputs.render_outputs(found)
    )


def result_of_stage(outcome: StageResult) -> StepResult:
    """A step whose wait is over."""
    return (
        result_of_error(outcome.error) if isinstance(outcome, Failed) else result_of_outputs(outcome.outputs)
    )


def result_of_error(error: Exception) -> StepResult:
    """A step that an error ends."""
    if isinstance(error, ForbiddenError | UnavailableError):
        return StepResult("Error", str(error))
    if isinstance(error, EdlError):
        return StepResult("Failed", str(error))
    return StepResult("Error", f"the agent failed, its log tells more: {type(error).__name__}: {error}")
