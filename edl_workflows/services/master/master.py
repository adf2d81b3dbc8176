"""The master's loop: messages change the state, commits store it, and only what is stored is published.

One commit can store several changes: a request whose answer must be durable waits for the commit after its
change. A change to what nodes are told is stored at once, other changes are stored at most once per
`StateStore.interval`, leases and acknowledgements about once a minute, and mere progress as often as the
job's status shows it: what the next master does not find, the nodes report again. So a job that only trains
writes almost nothing.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from enum import IntEnum

import structlog

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import EdlError, ForbiddenError, NotFoundError, UnavailableError
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.services.master.paced_call import PacedCall
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.history import extend_history
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.messages import find_node
from edl_workflows.services.master.state.stored_state import JobRecord
from edl_workflows.services.master.state.training_messages import StoreUse
from edl_workflows.services.master.state.transitions import settle_job
from edl_workflows.services.master.stores.port import StateStore

TICK = 1.0
"""Seconds between two checks of time-outs."""
KEPT = (30.0, 60.0)
"""Seconds after which leases and acknowledgements that the workers keep are stored; at random, so that many
masters don't write at the same time."""
RETRY = Backoff(first=0.5, most=5.0)
"""Pauses before a failed write is retried."""
REFUSED = 60.0
"""Seconds for which writes may be refused: a restarted API server refuses everybody until it has read the
Roles."""
UNSTORED_SECONDS = 5.0
"""Seconds for which writes fail until the job's warnings say so."""
_STORING = "store the job's state"
LAST_WRITE = 5.0
"""Seconds for the last write of a master that is told to end; no request waits for that write."""
GAP = 10.0
"""If two consecutive readings of the clock differ by more than this many seconds, the clock was set or this
process was paused, since every tick reads the clock.
"""

MAX_REFUSAL = 1_000
"""Characters of a refusal in the job's warnings."""

log = structlog.get_logger(__name__)


class WriteUrgency(IntEnum):
    """How soon a change must be stored."""

    LAZY = 0
    KEPT = 1
    GROUPED = 2
    NOW = 3


class Master:
    """Owns the state. All methods are for the loop's thread.

    Args:
        state: restored from `store`.
        store: where the state is stored.
        clock: Unix seconds.
    """

    def __init__(self, state: JobState, store: StateStore, clock: Callable[[], float] = time.time) -> None:
        self.state = state
        self.clock = clock
        self.stored: JobRecord = state.copy_record()
        """What a restarted master would find; effects follow it, never the state itself."""
        self.published = state.said
        self.commits = 0
        self._store = store
        self._change = 0
        self.durable_change = 0
        """The newest change that is stored."""
        self._due = float("inf")
        self._last_write = 0.0
        self._spread = random.uniform(1.0, 1.2)  # noqa: S311 - no secret
        self._pauses = {
            WriteUrgency.KEPT: random.uniform(*KEPT),  # noqa: S311 - no secret
            WriteUrgency.GROUPED: store.interval,
            WriteUrgency.NOW: 0.0,
        }
        state.volatile.master = secrets.token_hex(8)
        # The previous master's clock may have been ahead of this one.
        self._looked = max(clock(), state.newest_time)
        self._written = b""
        self._wake = asyncio.Event()
        self._entered = WriteUrgency.LAZY
        self._failure: Exception | None = None
        self._settling = PacedCall(self._settle_entered)
        self._gathering: asyncio.TimerHandle | None = None
        self.closing = False
        """Whether the server stops, so that no call waits any longer."""
        self._moved = Broadcast()
        self._committed = Broadcast()
        self._announced = Broadcast()
        self._effects_wake = Broadcast()

    async def run(self) -> None:
        """Commit and tick until cancelled, then store what has changed since the last commit.

        Raises:
            Exception: consequences could not be derived.
        """
        self.changed(WriteUrgency.NOW)
        ticks = asyncio.create_task(self._tick())
        try:
            await self._commit_forever()
        except asyncio.CancelledError:
            await self._last_commit()
            raise
        finally:
            ticks.cancel()

    def now(self) -> float:
        """Unix seconds.

        If the clock was set, the times in the state are shifted before the new time enters it. If they were
        shifted later, a node that reported by the new clock would be shifted too, and would seem to have been
        silent for hours, or to have reported in the future.
        """
        now = self.clock()
        gap, self._looked = now - self._looked, now
        if not -GAP < gap < GAP:
            log.warning("the clock was set, or this process was paused", seconds=round(gap))
            self.state.shift_times(gap)
        return now

    def entered(self, urgency: WriteUrgency) -> int:
        """Like `changed`, but the consequences are derived a moment later, together for all changes until
        then: the members of a large job report within a second that they are ready, or lost.
        """
        self._change += 1
        self._entered = max(self._entered, urgency)
        self._settling.request()
        return self._change

    def _settle_entered(self) -> None:
        urgency, self._entered = self._entered, WriteUrgency.LAZY
        try:
            self.changed(urgency)
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End `run`: requests wait for a change that is not derived, and the next master may derive it."""
        self._failure = error
        self._due = 0.0
        self._wake.set()

    def changed(self, urgency: WriteUrgency = WriteUrgency.GROUPED) -> int:
        """Derive the consequences of a change. Return the number of the change, for `durable`.

        If the consequences are more than progress, they are stored soon, however lazy the change is.
        """
        now = self.now()
        settle_job(self.state, now)
        if views.next_announcement(self.state) is not self.state.said:
            urgency = WriteUrgency.NOW
        elif urgency is WriteUrgency.LAZY and self.state.has_changed_since(self.stored):
            urgency = WriteUrgency.GROUPED
        self._moved.notify()
        self._await_losses(now)
        return self.touched(urgency)

    def _await_losses(self, now: float) -> None:
        """Settle again when the job no longer waits for further losses."""
        due = self.state.losses_due(now)
        if due is not None and self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(due - now, self._answer_losses)

    def _answer_losses(self) -> None:
        self._gathering = None
        self.entered(WriteUrgency.LAZY)

    def touched(self, urgency: WriteUrgency) -> int:
        """Schedule a write for a change without consequences. Return the number of the change."""
        self._change += 1
        lazy = self.state.settings.progress_period * self._spread
        due = self._last_write + self._pauses.get(urgency, lazy)
        if due < self._due:
            self._due = due
            self._wake.set()
        return self._change

    @property
    def newest_change(self) -> int:
        """Number of the newest change."""
        return self._change

    @property
    def store_use(self) -> StoreUse:
        """How full the store is."""
        return StoreUse(len(self._written), self._store.capacity, self._store.place)

    async def durable(self, change: int) -> None:
        """Wait until a change is stored."""
        while self.durable_change < change:
            await self._committed.wait()

    def close(self) -> None:
        """Answer all long polls now, because the server stops."""
        self.closing = True
        self._committed.notify()
        self._announced.notify()
        self._moved.notify()

    async def moved(self, seconds: float) -> None:
        """Wait until the state may have changed, at most for `seconds`."""
        await self._moved.wait(seconds)

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition of the state holds, at most for `seconds`."""
        deadline = time.monotonic() + seconds
        while not (condition() or self.closing) and (left := deadline - time.monotonic()) > 0:
            await self.moved(left)

    def wake_effects(self) -> None:
        """Let the effects look now, although nothing is to be stored. Agents that wait for a directive, which
        may be a thousand, are not woken."""
        self._effects_wake.notify()

    def next_wake(self) -> asyncio.Event:
        """The event that the next commit or `wake_effects` sets."""
        return self._effects_wake.event

    async def committed(self, seconds: float) -> None:
        """Wait for the next commit, at most for `seconds`."""
        await self._committed.wait(seconds)

    def directive(self, ref: NodeRef) -> Directive:
        """The newest stored directive for this node.

        Raises:
            NotFoundError: the job never had such a node.
        """
        return views.directive_for(
            self.published, str(ref), registered=find_node(self.state, ref) is not None
        )

    async def next_directive(self, ref: NodeRef, after: int, seconds: float) -> Directive:
        """Return the directive once its revision exceeds `after`, or after `seconds` the present one."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (directive := self.directive(ref)).revision <= after:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self.closing:
                break
            await self._announced.wait(left)
        return directive

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - raised by `run`
                self._fail(error)

    def _look(self) -> None:
        """Derive what follows from the time that has passed."""
        now = self.now()
        self.state.measure_records(now)
        self.state.history = extend_history(self.state.history, views.history_sample(self.state, now))
        self.changed(WriteUrgency.LAZY)

    async def _commit_forever(self) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            pause = self._due - time.monotonic()
            if pause > 0:
                self._wake.clear()
                await wait_within(self._wake, min(pause, 3600.0))
                continue
            await self._commit()

    async def _commit(self) -> None:
        self._settling.make_requested()
        change, self._due, self._last_write = self._change, float("inf"), time.monotonic()
        self.state.said = views.next_announcement(self.state)
        stored, text = self.state.copy_record(), self.state.to_json()
        if text != self._written:
            await self._write(text)
        self._written, self.durable_change = text, change
        announced = stored.said is not self.published
        self.stored, self.published = stored, stored.said
        self._committed.notify()
        if announced:  # a thousand agents wait for it
            self._announced.notify()
        self._effects_wake.notify()

    async def _last_commit(self) -> None:
        """Store what changed since the last commit; every answered request is stored already."""
        try:
            async with asyncio.timeout(LAST_WRITE):
                await self._commit()
        except TimeoutError:
            log.warning("the last progress is not stored: the store did not answer", seconds=LAST_WRITE)

    async def _write(self, text: bytes) -> None:
        begun, failures = time.monotonic(), 0
        while True:
            try:
                await self._save(text)
            except UnavailableError as error:
                failures += 1
                self._note_unstored(error, time.monotonic() - begun)
                await asyncio.sleep(RETRY.delay(failures))
            except (NotFoundError, ForbiddenError) as error:
                # Store and rights may go a moment before the job is seen to be deleted.
                failures += 1
                await self.wait_until(lambda: self.state.volatile.departure.deleted, RETRY.first)
                if self.state.volatile.departure.deleted:
                    log.info("the state is no longer stored: the job is deleted", error=str(error))
                    return
                if isinstance(error, NotFoundError) or time.monotonic() - begun > REFUSED:
                    raise
                self._note_unstored(error, time.monotonic() - begun)
            else:
                self.commits += 1
                if self.state.volatile.refused.pop(_STORING, None) is not None:
                    log.info("the state is stored again", attempts=failures + 1)
                return

    def _note_unstored(self, error: EdlError, seconds: float) -> None:
        """Log a failed write. If writes have failed for long, the job's warnings say so."""
        log.warning("state not stored, trying again", error=str(error))
        if seconds > UNSTORED_SECONDS:
            self.state.volatile.refused[_STORING] = str(error)[:MAX_REFUSAL]

    async def _save(self, text: bytes) -> None:
        # If cancelled, the write must still complete: the store can't take two documents at once.
        saving = asyncio.create_task(asyncio.to_thread(self._store.save, text))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.gather(saving, return_exceptions=True)
            raise


class Broadcast:
    """Wakes all waiters each time something happens."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        """Set when it happens next; then another one takes its place."""

    def notify(self) -> None:
        self.event.set()
        self.event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the next `notify`, at most for `seconds`."""
        if seconds is None:
            await self.event.wait()
        else:
            await wait_within(self.event, seconds)


async def wait_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most for `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
