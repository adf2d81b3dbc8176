"""Model checkpoints and the data position that belongs to each.

The position is taken when the chief begins to save: all that was acknowledged by then is in the model. A restore goes back
to both together.
"""

from dataclasses import dataclass, field, replace

from edl_workflows.exceptions import ConflictError, NotFoundError
from edl_workflows.master.shards.snapshot import JobPosition
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.training import CheckpointBegin, CheckpointDamage, CheckpointEnd, Evaluation

KEPT = 3
"""Complete checkpoints whose position is remembered; older ones can't be restored."""
MAX_PENDING = 4
"""Saves under way. A chief does one at a time; what is older was abandoned."""


@dataclass(frozen=True)
class SaveTicket:
    """A save that was begun. `last`: of the training's last checkpoint."""

    id: str
    request: str
    version: int
    position: JobPosition
    evaluation: Evaluation | None = None
    last: bool = False


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint. `time` is Unix seconds; `evaluation` is what the model said when it was saved."""

    id: str
    request: str
    uri: str
    step: int
    time: float
    position: JobPosition
    evaluation: Evaluation | None = None

    @property
    def ref(self) -> CheckpointRef:
        """What a cluster restores from."""
        return CheckpointRef(uri=self.uri, step=self.step)


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A checkpoint that could not be restored, and why. `instead`: what is taken in its place; "" if there is none."""

    uri: str
    error: str
    instead: str = ""


@dataclass(frozen=True)
class FailedSaves:
    """Saves that failed.

    Attributes:
        total: in the life of the job.
        row: since the newest checkpoint that was saved.
        last: of that row, tries of the training's last checkpoint.
        since: Unix seconds of the first of that row; 0 while there is none.
        error: why that first one failed.
    """

    total: int = 0
    row: int = 0
    since: float = 0.0
    error: str = ""
    last: int = 0

    def another(self, error: str, now: float, *, last: bool = False) -> "FailedSaves":
        """One more."""
        more = replace(self, total=self.total + 1, row=self.row + 1, last=self.last + last)
        return more if self.row else replace(more, since=now, error=error)


@dataclass(frozen=True)
class Checkpoints:
    """All about checkpoints.

    Attributes:
        last_number: counts tickets.
        request: id of the save that the chief shall make now; "" for none.
        failed: id of the newest ticket that failed, and why, by request.
        saved: the newest complete ones, newest last.
        damaged: the newest of those that could not be restored, as they were found.
        lost: why there is nothing left to start from; "" as long as there is.
        failing: saves that failed, whoever asked for them.
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
    def newest(self) -> SavedCheckpoint | None:
        """The one to restore from."""
        return self.saved[-1] if self.saved else None

    def result(self, request: str) -> SavedCheckpoint | str | None:
        """What became of a request: the checkpoint, why it failed, or None while it is under way."""
        done = next((saved for saved in reversed(self.saved) if saved.request == request), None)
        return done or self.failed.get(request)

    def is_damaged(self, ref: CheckpointRef | None) -> bool:
        """Whether a checkpoint was found to be damaged."""
        return ref is not None and any(damaged.uri == ref.uri for damaged in self.damaged)


def request_save(checkpoints: Checkpoints, request: str) -> Checkpoints:
    """Asks the chief for a checkpoint. Repeatable: what was answered is not asked again."""
    if checkpoints.request == request or checkpoints.result(request) is not None:
        return checkpoints
    return replace(checkpoints, request=request, failed={})


def withdraw_request(checkpoints: Checkpoints) -> Checkpoints:
    """The save is not needed any more; one that completes nevertheless counts as periodic."""
    return replace(checkpoints, request="")


def begin_save(
    checkpoints: Checkpoints, message: CheckpointBegin, position: JobPosition
) -> tuple[Checkpoints, SaveTicket]:
    """The chief begins to save now. A repeated message makes another ticket, and the older stays unused."""
    fresh = checkpoints.last_number + 1
    ticket = SaveTicket(
        f"checkpoint-{fresh}", message.request, message.version, position, message.evaluation, message.last
    )
    pending = (*checkpoints.pending, ticket)[-MAX_PENDING:]
    return replace(checkpoints, last_number=fresh, pending=pending), ticket


def end_save(checkpoints: Checkpoints, ticket_id: str, message: CheckpointEnd, now: float) -> Checkpoints:
    """The save is complete, or failed. Repeatable. News of one from which the job goes on by now changes nothing.

    Raises:
        NotFoundError: the ticket is unknown or too old.
        ConflictError: the message names no place.
    """
    known = any(
        saved.id == ticket_id or (message.uri and saved.uri == message.uri) for saved in checkpoints.saved
    )
    if ticket_id in checkpoints.failed_tickets or (known and not _under_way(checkpoints, ticket_id)):
        return checkpoints
    ticket = next((ticket for ticket in checkpoints.pending if ticket.id == ticket_id), None)
    if ticket is None:
        raise NotFoundError(
            f"checkpoint {ticket_id!r} is not under way: begin it again; the cluster version may have changed"
        )
    if not message.error and not message.uri:
        raise ConflictError(f"checkpoint {ticket_id!r}: say the uri of what was saved, or the error")
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
        ticket_id, ticket.request, message.uri, message.step, now, ticket.position, ticket.evaluation
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
    """The chief starts from a checkpoint that nobody told of: of an earlier job, or its news was lost with who saved it."""
    fresh = checkpoints.last_number + 1
    saved = SavedCheckpoint(f"checkpoint-{fresh}", "", ref.uri, ref.step, now, position)
    return replace(checkpoints, last_number=fresh, saved=(*checkpoints.saved, saved)[-KEPT:])


def mark_damaged(checkpoints: Checkpoints, message: CheckpointDamage, *, blocks: bool) -> Checkpoints:
    """A checkpoint can't be restored: nobody is sent back to it again. Repeatable.

    Args:
        checkpoints: as they were.
        message: which one, and why.
        blocks: the job can't go on without a checkpoint: there is a model, or data, to go back to.
    """
    saved = tuple(other for other in checkpoints.saved if other.uri != message.uri)
    before = saved[-1].ref if saved else None
    instead = message.instead or before
    damaged = DamagedCheckpoint(message.uri, message.error, instead.uri if instead else "")
    found = (*_without(checkpoints, message.uri), damaged)[-KEPT:]
    lost = checkpoints.lost
    if blocks and not saved:
        lost = (
            f"no checkpoint is left to start from: {'; '.join(one.error for one in found)}: bring the files back, "
            f"or remove {message.uri} to begin anew, and submit the job again"
        )
    return replace(checkpoints, saved=saved, damaged=found, lost=lost)


def abandon_saves(checkpoints: Checkpoints) -> Checkpoints:
    """Another version became active: what the one before still saves is of a model that nobody continues."""
    return replace(checkpoints, pending=(), request="")


def _under_way(checkpoints: Checkpoints, ticket_id: str) -> bool:
    return any(ticket.id == ticket_id for ticket in checkpoints.pending)


def _without(checkpoints: Checkpoints, uri: str) -> tuple[DamagedCheckpoint, ...]:
    return tuple(damaged for damaged in checkpoints.damaged if damaged.uri != uri)
