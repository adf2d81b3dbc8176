"""The result of a step: phase, message and output parameters of a node. Argo's controller copies them to
the workflow's status."""

from dataclasses import dataclass, field
from typing import Any, Literal

from edl_workflows.core.exceptions import EdlError, ForbiddenError, UnavailableError
from edl_workflows.core.protocol.metrics import MAX_CHARTED, describe_metrics
from edl_workflows.core.protocol.reported_text import inert_text
from edl_workflows.pipelines.argo.templates import outputs
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.pipelines.waiting.results import Failed, InProgress, Skipped, StageResult

MAX_MESSAGE = 2000
"""Longest message in characters: a workflow with all its nodes must fit into one API object."""

NodePhase = Literal["Succeeded", "Failed", "Error"]
"""The agent reports only these phases. If a node is reported as Running, Argo's time-outs ignore it, and the
controller writes the workflow again in each reconciliation."""


@dataclass(frozen=True)
class StepResult:
    """The result of a step.

    Attributes:
        phase: Failed if the step itself failed, Error if the infrastructure failed. Argo's retry policies
            distinguish the two.
        message: for users.
        parameters: output parameters.
    """

    phase: NodePhase
    message: str = ""
    parameters: list[dict[str, str]] = field(default_factory=list)

    def to_node(self) -> dict[str, Any]:
        """The entry in ``status.nodes``."""
        node: dict[str, Any] = {"phase": self.phase, "message": inert_message(self.message)}
        return node | ({"outputs": {"parameters": self.parameters}} if self.parameters else {})


def inert_message(message: str) -> str:
    """The message, truncated and without Argo tags that would be expanded. Messages of jobs and pods may
    contain any text, and exit handlers insert them into their templates."""
    return inert_text(message)[:MAX_MESSAGE]


def result_of_outputs(stage_outputs: Outputs, message: str = "") -> StepResult:
    """The result of a step that has reached its goal or does not wait for it."""
    job = f"{stage_outputs.kind} {stage_outputs.namespace}/{stage_outputs.name}"
    state = f" {stage_outputs.phase}" if stage_outputs.phase else ""
    text = message or f"{job}{state}{_describe_training(stage_outputs)}"
    return StepResult("Succeeded", text, outputs.render_outputs(stage_outputs))


def _describe_training(stage_outputs: Outputs) -> str:
    """How far training came: step, metrics, checkpoint, warnings."""
    warnings = stage_outputs.warnings or []
    parts = [
        f"step {stage_outputs.step:,}" if stage_outputs.step else "",
        describe_metrics(stage_outputs.metrics or {}, MAX_CHARTED),
        f"checkpoint at step {stage_outputs.checkpoint.step:,}" if stage_outputs.checkpoint else "",
        f"warns: {'; '.join(warnings)}" if warnings else "",
    ]
    return "".join(f"; {part}" for part in parts if part)


def result_of_stage(outcome: StageResult) -> StepResult:
    """The result of a step whose wait has ended.

    For a skipped stage the phase is Succeeded, and the message contains the reason. The steps that depend on
    it then run, as they do after a step that Argo itself skips.
    """
    if isinstance(outcome, Failed):
        return result_of_error(outcome.error)
    stage_outputs = outcome.outputs
    if isinstance(outcome, Skipped):
        return result_of_outputs(stage_outputs, f"skipped: {outcome.reason}")
    if isinstance(outcome, InProgress):  # a step that does not wait: the message says why its job is queued
        return result_of_outputs(
            stage_outputs,
            f"{stage_outputs.kind} {stage_outputs.namespace}/{stage_outputs.name} {outcome.message}",
        )
    return result_of_outputs(stage_outputs)


def result_of_error(error: Exception) -> StepResult:
    """The result of a step that failed with an error."""
    if isinstance(error, ForbiddenError | UnavailableError):
        return StepResult("Error", str(error))
    if isinstance(error, EdlError):
        return StepResult("Failed", str(error))
    return StepResult("Error", f"the agent failed, its log tells more: {type(error).__name__}: {error}")
