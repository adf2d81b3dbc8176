"""The result of a step: phase, message and output parameters of a node, which Argo's controller copies."""

from dataclasses import dataclass, field
from typing import Any, Literal

from edl_workflows.argo import outputs
from edl_workflows.exceptions import EdlError, ForbiddenError, UnavailableError
from edl_workflows.stages.goals import Failed, Outputs, Skipped, StageResult

MAX_MESSAGE = 2000
"""Characters. A workflow with all its nodes must fit into one object of the API server."""

NodePhase = Literal["Succeeded", "Failed", "Error"]
"""Only these are reported. A node that is reported Running escapes Argo's time-outs, and makes the controller
write the workflow anew at each pass."""


@dataclass(frozen=True)
class StepResult:
    """A step's end.

    Attributes:
        phase: Failed if the step itself failed, Error for the infrastructure; Argo's retry policies
            distinguish the two.
        message: for people.
        parameters: output parameters.
    """

    phase: NodePhase
    message: str = ""
    parameters: list[dict[str, str]] = field(default_factory=list)

    def to_node(self) -> dict[str, Any]:
        """The entry in ``status.nodes``."""
        node: dict[str, Any] = {"phase": self.phase, "message": self.message[:MAX_MESSAGE]}
        return node | ({"outputs": {"parameters": self.parameters}} if self.parameters else {})


def result_of_outputs(found: Outputs, message: str = "") -> StepResult:
    """The result of a step that reached its goal, or does not wait for it."""
    state = f" {found.phase}" if found.phase else ""
    told = message or f"{found.kind} {found.namespace}/{found.name}{state}"
    return StepResult("Succeeded", told, outputs.render_outputs(found))


def result_of_stage(outcome: StageResult) -> StepResult:
    """The result of a step whose wait has ended.

    A step that is skipped has Succeeded, and its message says why: in Argo, too, what depends on a skipped
    step runs.
    """
    if isinstance(outcome, Failed):
        return result_of_error(outcome.error)
    skipped = f"skipped: {outcome.reason}" if isinstance(outcome, Skipped) else ""
    return result_of_outputs(outcome.outputs, skipped)


def result_of_error(error: Exception) -> StepResult:
    """The result of a step that failed with an error."""
    if isinstance(error, ForbiddenError | UnavailableError):
        return StepResult("Error", str(error))
    if isinstance(error, EdlError):
        return StepResult("Failed", str(error))
    return StepResult("Error", f"the agent failed, its log tells more: {type(error).__name__}: {error}")
