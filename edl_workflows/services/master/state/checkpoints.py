"""Model checkpoints, each with the data position that belongs to it.

The position is taken when the chief begins to save: every record acknowledged by then is in the model. A
restore resets the model and the data position together.
"""

from dataclasses import dataclass, field, replace

from edl_workflows.core.exceptions import ConflictError, NotFoundError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.training import (
    CheckpointBegin,
    CheckpointDamage,
    CheckpointEnd,
    CheckpointTicket,
    Evaluation,
)
from edl_workflows.services.master.shards.snapshot import JobPosition

KEPT = 3
"""Complete checkpoints whose position is remembered; older ones can't be restored."""
MAX_PENDING = 4
"""Saves under way. A chief saves one checkpoint at a time; an older save was abandoned."""


@dataclass(frozen=True)
class SaveTicket:
    """A save that has begun. `last`: whether it is an attempt to save the training's last checkpoint;
    `begun`: Unix seconds, 0 if unknown.
    """

    id: str
    request: str
    version: int
    position: JobPosition
    evaluation: Evaluation | None = None
    last: bool = False
    begun: float = 0.0

    def to_message(self) -> CheckpointTicket:
        """What the chief is told of it."""
        position = self.position.model_dump(mode="json", exclude_defaults=True)
        return CheckpointTicket(id=self.id, position=position)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint. `time` is Unix seconds; `evaluation` is the model's evaluation when it was
    saved; `seconds` is how long that took, until it was on storage, 0 if unknown.
    """

    id: str
    request: str
    uri: str
    step: int
    time: float
    position: JobPosition
    evaluation: Evaluation | None = None
    seconds: float = 0.0

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(uri=self.uri, step=self.step)


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A checkpoint that could not be restored, and why. `instead`: the one restored in its place; "" if there
    is none.
    """

    uri: str
    error: str
    instead: str = ""


@dataclass(frozen=True)
class FailedSaves:
    """Failed saves.

    Attributes:
        total: during the life of the job.
        row: since the newest saved checkpoint.
        last: how many of `row` were attempts to save the training's last checkpoint.
        since: Unix seconds of the first failure of the row; 0 if there is none.
        error: why that first save failed.
    """

    total: int = 0
    row: int = 0
    since: float = 0.0
    error: str = ""
    last: int = 0

    def another(self, error: str, now: float, *, last: bool = False) -> "FailedSaves":
        more = replace(self, total=self.total + 1, row=self.row + 1, last=self.last + last)
        return more if self.row else replace(more, since=now, error=error)


@dataclass(frozen=True)
class Checkpoints:
    """All checkpoints of a job.

    Attributes:
        last_number: number of the newest ticket.
        request: id of the save that the chief has to make now; else "".
        failed: why requested saves failed, by request.
        failed_tickets: ids of the newest tickets that failed.
        saved: the newest complete checkpoints, newest last.
        damaged: the newest of those that could not be restored, in the order in which they were found.
        lost: why nothing is left to start from; else "".
        failing: failed saves, whoever requested them.
    """

    last_number: int = 0
    request: str = ""
    pending: tuple[SaveTicket, ...] = ()
    saved: tuple[SavedCheckpoint, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    failed_tickets: tuple[str, ...] = ()
    damaged: tuple[DamagedCheckpoint, ...] = ()
    lost: str = ""
    failing: FailedSaves = FailedSaves()

    @property
    def save_seconds(self) -> float:
        """How long the slowest of the newest saves took; 0 if unknown."""
        return max((saved.seconds for saved in self.saved), default=0.0)

    @property
    def newest(self) -> SavedCheckpoint | None:
        """The checkpoint to restore from."""
        return self.saved[-1] if self.saved else None

    def result(self, request: str) -> SavedCheckpoint | str | None:
        """Result of a request: the checkpoint, why it failed, or None while it is under way."""
        done = next((saved for saved in reversed(self.saved) if saved.request == request), None)
        return done or self.failed.get(request)

    def is_damaged(self, ref: CheckpointRef | None) -> bool:
        return ref is not None and any(damaged.uri == ref.uri for damaged in self.damaged)


def request_save(checkpoints: Checkpoints, request: str) -> Checkpoints:
    """Request a checkpoint from the chief. Repeatable: an answered request is not made again."""
    if checkpoints.request == request or checkpoints.result(request) is not None:
        return checkpoints
    return replace(checkpoints, request=request, failed={})


def withdraw_request(checkpoints: Checkpoints) -> Checkpoints:
    """Withdraw the request; if the save completes nevertheless, it counts as periodic."""
    return replace(checkpoints, request="")


def begin_save(
    checkpoints: Checkpoints, message: CheckpointBegin, position: JobPosition, now: float
) -> tuple[Checkpoints, SaveTicket]:
    """Issue a ticket for a save that begins now. A repeated message gets another ticket; the first stays
    unused.
    """
    fresh = checkpoints.last_number + 1
    ticket = SaveTicket(
        f"checkpoint-{fresh}",
        message.request,
        message.version,
        position,
        message.evaluation,
        message.last,
        begun=now,
    )
    pending = (*checkpoints.pending, ticket)[-MAX_PENDING:]
    return replace(checkpoints, last_number=fresh, pending=pending), ticket


def end_save(checkpoints: Checkpoints, ticket_id: str, message: CheckpointEnd, now: float) -> Checkpoints:
    """Record that a save completed or failed. Repeatable; a checkpoint that is already known is not changed.

    Raises:
        NotFoundError: the ticket is unknown or too old.
        ConflictError: the message has neither a URI nor an error.
    """
    recorded = any(
        saved.id == ticket_id or (message.uri and saved.uri == message.uri) for saved in checkpoints.saved
    )
    if ticket_id in checkpoints.failed_tickets or (recorded and not _under_way(checkpoints, ticket_id)):
        return checkpoints
    ticket = next((ticket for ticket in checkpoints.pending if ticket.id == ticket_id), None)
    if ticket is None:
        raise NotFoundError(
            f"checkpoint {ticket_id!r} is not under way: begin it again; the cluster version may have changed"
        )
    if not message.error and not message.uri:
        raise ConflictError(f"checkpoint {ticket_id!r}: give the uri of the checkpoint, or the error")
    pending = tuple(other for other in checkpoints.pending if other is not ticket)
    request = "" if ticket.request == checkpoints.request else checkpoints.request
    if message.error:
        failed = (
            {**checkpoints.failed, ticket.request: message.error} if ticket.request else checkpoints.failed
        )
        tickets = (*checkpoints.failed_tickets, ticket_id)[-MAX_PENDING:]
        return replace(
            checkpoints,
            pending=pending,
            request=request,
            failed=failed,
            failed_tickets=tickets,
            failing=checkpoints.failing.another(message.error, now, last=ticket.last),
        )
    saved = SavedCheckpoint(
        ticket_id,
        ticket.request,
        message.uri,
        message.step,
        now,
        ticket.position,
        ticket.evaluation,
        max(0.0, now - ticket.begun) if ticket.begun else 0.0,
    )
    return replace(
        checkpoints,
        pending=pending,
        request=request,
        saved=(*checkpoints.saved, saved)[-KEPT:],
        damaged=_without(checkpoints, message.uri),
        failing=FailedSaves(total=checkpoints.failing.total),
    )


def adopt_checkpoint(
    checkpoints: Checkpoints, ref: CheckpointRef, position: JobPosition, now: float
) -> Checkpoints:
    """Add a checkpoint that the chief found and starts from, but that was never reported to this master."""
    fresh = checkpoints.last_number + 1
    saved = SavedCheckpoint(f"checkpoint-{fresh}", "", ref.uri, ref.step, now, position)
    return replace(checkpoints, last_number=fresh, saved=(*checkpoints.saved, saved)[-KEPT:])


def mark_damaged(checkpoints: Checkpoints, message: CheckpointDamage, *, blocks: bool) -> Checkpoints:
    """Record that a checkpoint can't be restored, so that it is not used again. Repeatable.

    Args:
        checkpoints: the checkpoints so far.
        message: which checkpoint, and why.
        blocks: whether the version can't start: it has made no step, and the process found no other
            checkpoint.
    """
    saved = tuple(other for other in checkpoints.saved if other.uri != message.uri)
    before = saved[-1].ref if saved else None
    instead = message.instead or before
    damaged = DamagedCheckpoint(message.uri, message.error, instead.uri if instead else "")
    newest_damaged = (*_without(checkpoints, message.uri), damaged)[-KEPT:]
    lost = checkpoints.lost
    if blocks and not saved:
        errors = "; ".join(checkpoint.error for checkpoint in newest_damaged)
        lost = (
            f"no checkpoint is left to start from: {errors}: "
            f"bring the files back, or remove {message.uri} to begin anew, and submit the job again"
        )
    return replace(checkpoints, saved=saved, damaged=newest_damaged, lost=lost)


def abandon_saves(checkpoints: Checkpoints) -> Checkpoints:
    """Drop pending saves. Called when another version becomes active, which continues from another model."""
    return replace(checkpoints, pending=(), request="")


def _under_way(checkpoints: Checkpoints, ticket_id: str) -> bool:
    return any(ticket.id == ticket_id for ticket in checkpoints.pending)


def _without(checkpoints: Checkpoints, uri: str) -> tuple[DamagedCheckpoint, ...]:
    return tuple(damaged for damaged in checkpoints.damaged if damaged.uri != uri)
