"""Messages about the model and its checkpoints, entered into the state.

As in `messages`, any of them can arrive twice, late, or from a node that was removed.
"""

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from edl_workflows.core.exceptions import ConflictError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.message import describe_problems
from edl_workflows.core.protocol.training import (
    CheckpointBegin,
    CheckpointDamage,
    CheckpointEnd,
    CheckpointRestore,
    ModelReport,
    ModelVerdict,
)
from edl_workflows.services.master.shards.snapshot import JobPosition
from edl_workflows.services.master.state import checkpoints
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.messages import find_node
from edl_workflows.services.master.state.rollouts.rollout import describe_changed_model
from edl_workflows.services.master.state.versions import cluster_versions, version_steps


def begin_checkpoint(state: JobState, message: CheckpointBegin, now: float) -> checkpoints.SaveTicket:
    """Issue a ticket for the chief's save. It holds the present data position, in which everything that the
    chief reports as trained counts as done.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: the node's version is not active, or in a collective job the node is not rank 0.
    """
    node = find_node(state, message.node)
    _require_active(state, message.version, "its checkpoint would belong to no data position")
    if state.settings.collective and node != state.chief:
        raise ConflictError(f"{message.node} is not rank 0 of version {message.version}: only rank 0 saves")
    position = state.shards.position_for(message.node, message.consumed, now)
    state.checkpoints, ticket = checkpoints.begin_save(state.checkpoints, message, position, now)
    return ticket


def end_checkpoint(state: JobState, ticket: str, message: CheckpointEnd, now: float) -> CheckpointRef:
    """Record that the save completed or failed. Return the checkpoint.

    Raises:
        NotFoundError: there is no such ticket.
        ConflictError: the message has neither a URI nor an error.
    """
    find_node(state, message.node)
    state.checkpoints = checkpoints.end_save(state.checkpoints, ticket, message, now)
    return CheckpointRef(uri=message.uri, step=message.step)


def record_restored_checkpoint(state: JobState, message: CheckpointRestore, now: float) -> None:
    """Record the checkpoint that the chief found when the master named none: model and data continue from
    it.

    It has an effect only before the version trains. Repeatable.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: the node's version is not active, or another node is its chief.
        InvalidError: the data position is invalid.
    """
    _require_chief(state, message, "its model belongs to no data position", "names the checkpoint")
    active = state.versions.active
    if active is None or active.restore is not None or state.versions.trained >= active.number:
        return
    ref = CheckpointRef(uri=message.uri, step=message.step)
    version_steps.start_from(state, ref, _parse_position(message.position), now)


def _parse_position(position: dict[str, Any] | None) -> JobPosition | None:
    try:
        return None if position is None else JobPosition.model_validate(position).forgiven()
    except ValidationError as error:
        raise InvalidError(f"the data position is damaged: {describe_problems(error)[0]}") from error


def record_damaged_checkpoint(state: JobState, message: CheckpointDamage) -> None:
    """Record that a process could not start from a checkpoint.

    If the process found another checkpoint, the damage only causes a warning. Otherwise the process waits for
    a version that starts from an older checkpoint with its data position.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: the node's version is not active.
    """
    find_node(state, message.node)
    _require_active(state, message.version, "nobody starts from its checkpoint any more")
    blocks = message.instead is None and state.versions.trained < message.version
    state.checkpoints = checkpoints.mark_damaged(state.checkpoints, message, blocks=blocks)


def record_model_report(state: JobState, message: ModelReport) -> ModelVerdict:
    """Record the chief's evaluation of the restored model; for a plan's version it decides whether the plan
    continues.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: the node's version is not active, or another node is its chief.
    """
    _require_chief(state, message, "its model is not used any more", "reports the model's evaluation")
    change, plan = state.versions.change, state.plan
    if change is not None and change.cause is cluster_versions.ChangeCause.ROLLBACK:
        return ModelVerdict(refused=f"version {message.version} is rolled back")
    if plan is None or not plan.activated or plan.number != message.version:
        return ModelVerdict()
    state.plan = plan = replace(plan, after=message.evaluation)
    return ModelVerdict(refused=describe_changed_model(plan))


def _require_active(state: JobState, version: int, else_: str) -> None:
    active = state.versions.active
    if active is None or version != active.number:
        number = active.number if active else "none"
        raise ConflictError(f"version {version} is not the active one ({number}): {else_}")


def _require_chief(
    state: JobState, message: CheckpointRestore | ModelReport, else_: str, action: str
) -> None:
    node = find_node(state, message.node)
    _require_active(state, message.version, else_)
    if node is None or node != state.chief:
        raise ConflictError(f"{message.node} is not the chief ({state.chief}): only the chief {action}")
