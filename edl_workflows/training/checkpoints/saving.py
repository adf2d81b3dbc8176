"""Decides when the chief saves a checkpoint, and reports the result to the master. The training code sets how
to save."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.core.protocol.training import (
    CheckpointBegin,
    CheckpointEnd,
    CheckpointTicket,
    ConsumedShards,
    Evaluation,
)
from edl_workflows.training.client import MasterClient, Retries
from edl_workflows.training.directives import DirectiveWatch
from edl_workflows.training.reports import Reporter

if TYPE_CHECKING:  # needs numpy, which a program with its own saver may not have
    from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages

_OF_MEMBER = CheckpointTicket(id="")
"""Stands for a ticket in members other than the chief, which have none."""
RETRY_SECONDS = 1.0
"""Polling interval while waiting for the agent's second stage, or for a report to reach the master."""

log = logging.getLogger(__name__)


class SaveWish(IntEnum):
    """What the chief wants all members to save after a step."""

    NOTHING = 0
    COPY = 1
    """A copy in memory."""
    CHECKPOINT = 2
    """A copy that goes to storage."""


class CheckpointSaver:
    """Saves the checkpoints of one training process. To be used in its main thread only.

    Args:
        client: connection to the master.
        watch: the watch of the master's directive.
        reporter: reports the result to the master.
        node: this node.
        version: cluster version of the process.
        consumed: returns what this process has trained but not acknowledged yet.
        evaluate: evaluates the model, for a checkpoint that a plan requests.
    """

    def __init__(
        self,
        client: MasterClient,
        watch: DirectiveWatch,
        reporter: Reporter,
        node: NodeRef,
        version: int,
        consumed: Callable[[], dict[str, ConsumedShards]],
        evaluate: Callable[[], Evaluation | None] = lambda: None,
    ) -> None:
        self.position: Mapping[str, Any] | None = None
        """The data position of the newest checkpoint that was begun."""
        self.drained = False
        """Whether the process has stopped for a switch. A checkpoint requested during a drain is saved only
        then, since a step made after the switch checkpoint would be lost."""
        self.trained = False
        """Whether something was trained since the last checkpoint of this process."""
        self.saved = False
        """Whether this process has saved a checkpoint."""
        self.error = ""
        """Why the newest save failed; "" if it succeeded."""
        self._next_stored = float("inf")
        self._next_copied = float("inf")
        self._client = client
        self._watch = watch
        self._reporter = reporter
        self._node = node
        self._version = version
        self._consumed = consumed
        self._evaluate = evaluate
        self._save: Callable[[], CheckpointRef] | None = None
        self._first_stage: FirstStage | None = None
        self._every = float("inf")
        self._copy_every = float("inf")
        self._not_before = 0.0
        self._refusals = Retries(threading.Event())
        self._logged_error = ""
        self._served = ""

    def go_on_in(self, version: int) -> None:
        """Save for another cluster version from now on."""
        self._version = version
        if self._first_stage is not None:
            self._first_stage.version = version

    @property
    def configured(self) -> bool:
        """Whether the training code has set how to save."""
        return self._save is not None or self._first_stage is not None

    @property
    def next_periodic(self) -> float:
        """Monotonic time at which the next periodic checkpoint or copy is due."""
        return min(self._next_stored, self._next_copied)

    def configure(self, save: Callable[[], CheckpointRef], every_seconds: float | None) -> None:
        """See `Job.save_with`."""
        self._save, self._first_stage = save, None
        self._reporter.report_saves()
        self._every = every_seconds or float("inf")
        self._copy_every = self._next_copied = float("inf")
        self._next_stored = time.monotonic() + self._every

    def configure_stages(self, options: TwoStages, first: FirstStage) -> None:
        """See `Job.save_in_two_stages`."""
        first.on_failure = self._report_failure
        self._first_stage = first
        self._reporter.report_saves()
        self._every = options.every_seconds or float("inf")
        self._copy_every = options.memory_seconds or float("inf")
        self._next_stored = time.monotonic() + self._every
        self._next_copied = time.monotonic() + self._copy_every

    def reserve_memory(self, *, chief: bool) -> None:
        """See `Job.reserve_memory`."""
        if self._first_stage is not None:
            self._first_stage.reserve(chief=chief)

    def close(self, seconds: float) -> None:
        """Release what a device holds for saving; see `FirstStage.close`."""
        if self._first_stage is not None:
            self._first_stage.close(seconds)

    def due(self, directive: Directive) -> bool:
        """Whether the chief must save now. During a drain it saves only on request, since a switch waits for
        the drain. A request waits until the memory for copies is allocated, while training goes on."""
        now = time.monotonic()
        if not self.configured or now < self._not_before:
            return False
        if self._request(directive):
            return directive.drain or self._first_stage is None or not self._first_stage.reserving
        if now < self.next_periodic or directive.drain:
            return False
        return self._first_stage is None or not self._put_off_while_busy(self._first_stage)

    def requested(self, directive: Directive) -> bool:
        """Whether the master requests a checkpoint of which this process has not saved its part yet."""
        return self.configured and bool(self._request(directive))

    def save(
        self, patience: float, stopped: Callable[[], bool], *, stored: bool = False, last: bool = False
    ) -> CheckpointRef | None:
        """See `Job.checkpoint`.

        Args:
            patience: seconds to wait for an unreachable master.
            stopped: ends the wait when it returns True.
            stored: whether to wait until the checkpoint is on storage, even if it is saved in two stages.
            last: whether it is the training's last checkpoint, which the caller retries.
        """
        assert self.configured, "set how to save first: save_with, or save_in_two_stages"
        began = time.monotonic()
        try:
            return self._save_once(patience, stopped, stored, last)
        finally:
            self._reporter.saving(time.monotonic() - began)

    def _save_once(
        self, patience: float, stopped: Callable[[], bool], stored: bool, last: bool
    ) -> CheckpointRef | None:
        deadline = time.monotonic() + patience
        while True:
            request = self._request(self._watch.latest)
            persist = stored or bool(request) or not self._only_copies()
            if (ticket := self._begin(request, persist, last)) is not None:
                break
            if stopped() or time.monotonic() >= deadline:
                return None
            time.sleep(max(0.0, self._not_before - time.monotonic()))
        try:
            saved = self._saved(ticket, persist, stopped, stored)
        except Exception as error:
            # Training can continue without this checkpoint.
            log.exception("saving a checkpoint failed")
            self.error = _reason(error)
            self._report_failure(ticket, error)
            return None
        self._plan_next(persist)
        if saved is not None and (stored or self._first_stage is None):
            self.trained, self.saved, self.error = False, True, ""
        return saved

    def wish(self, directive: Directive) -> SaveWish:
        """What all members must save together after this step. Called by the chief."""
        if not self.due(directive):
            return SaveWish.NOTHING
        persist = bool(self._request(directive)) or not self._only_copies()
        return SaveWish.CHECKPOINT if persist else SaveWish.COPY

    def save_part(self, wish: SaveWish, *, chief: bool) -> None:
        """See `Job.checkpoint_part`."""
        began = time.monotonic()
        try:
            self._save_part_once(wish, chief)
        finally:
            self._reporter.saving(time.monotonic() - began)

    def _save_part_once(self, wish: SaveWish, chief: bool) -> None:
        assert self._first_stage is not None, "set how to save first: save_in_two_stages"
        persist = wish is SaveWish.CHECKPOINT
        request = self._request(self._watch.latest) if persist else ""
        ticket = self._begin(request, persist, last=False) if chief else _OF_MEMBER
        if not chief:
            self._served = request or self._served
        if ticket is None:
            return  # the copies of the other members are then not published
        try:
            made = self._first_stage.save_part(ticket, persist=persist)
        except Exception as error:
            # Training can continue without this checkpoint.
            log.exception("saving a part of a checkpoint failed")
            self._report_failure(ticket, error)
            return
        if isinstance(made, CheckpointRef) and chief:
            self._reporter.checkpoint(ticket.id, CheckpointEnd(node=self._node, uri=made.uri, step=made.step))
        self._plan_next(persist)

    def _report_failure(self, ticket: CheckpointTicket, error: Exception) -> None:
        """Report to the master why a checkpoint failed. May be called from any thread."""
        if ticket.id:
            self._reporter.checkpoint(ticket.id, CheckpointEnd(node=self._node, error=_reason(error)))

    def _saved(
        self, ticket: CheckpointTicket, persist: bool, stopped: Callable[[], bool], stored: bool
    ) -> CheckpointRef | None:
        """Save; None if stopped before the checkpoint was stored. Either this process or the agent reports
        the checkpoint to the master."""
        if self._first_stage is None:
            assert self._save is not None
            saved = self._save()
        else:
            made = self._first_stage.save(ticket, persist=persist, wait=stored)
            if not isinstance(made, CheckpointRef):
                return self._first_stage.until_stored(made, stopped) if stored else made.ref
            saved = made
        self._reporter.checkpoint(ticket.id, CheckpointEnd(node=self._node, uri=saved.uri, step=saved.step))
        while stored and not (self._reporter.flush(RETRY_SECONDS) or stopped()):
            pass  # exiting now would lose the report
        return saved

    def _only_copies(self) -> bool:
        """Whether only a copy in memory is due, and no checkpoint."""
        now = time.monotonic()
        return self._first_stage is not None and self._next_copied <= now < self._next_stored

    def _put_off_while_busy(self, first: FirstStage) -> bool:
        """Delay a periodic copy while the agent is busy, so that a slow agent does not stall training."""
        busy = first.busy
        if busy:
            self._not_before = time.monotonic() + RETRY_SECONDS
        return busy

    def _plan_next(self, persist: bool) -> None:
        now = time.monotonic()
        self._next_copied = now + self._copy_every
        if persist:
            self._next_stored = now + self._every

    def _begin(self, request: str, persist: bool, last: bool) -> CheckpointTicket | None:
        """Announce a checkpoint, so that the master records the data position. Returns None if no checkpoint
        is possible now."""
        begin = CheckpointBegin(
            node=self._node,
            version=self._version,
            request=request,
            consumed=self._consumed(),
            evaluation=self._evaluate() if request else None,
            last=last,
        )
        try:
            ticket = self._client.begin_checkpoint(begin)
        except EdlError as error:
            # The master is unreachable, or another version has just become active.
            if self._logged_error != type(error).__name__:
                self._logged_error = type(error).__name__
                log.warning("%s; no checkpoint now, retrying", error)
            self._not_before = time.monotonic() + self._refusals.next_delay()
            return None
        self._refusals.reset()
        self._logged_error = ""
        self._served = request or self._served
        self.position = ticket.position
        self._plan_next(persist)
        return ticket

    def _request(self, directive: Directive) -> str:
        """The id of a request that has not been served yet; "" if there is none."""
        too_early = directive.drain and not self.drained
        return directive.save if directive.save != self._served and not too_early else ""


def _reason(error: Exception) -> str:
    """The error as a message for users; the text of an EdlError is complete without its type."""
    text = str(error) if isinstance(error, EdlError) else f"{type(error).__name__}: {error}"
    return text[:4096]
