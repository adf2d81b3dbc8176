"""The master's loop: messages change the state, commits store it, and only what is stored is published.

Group commit: whoever must answer durably waits for the commit after its change. A change of what nodes are told is stored
at once; everything else at most once in `Store.interval`; mere statistics more seldom.
"""

import asyncio
import time
from collections.abc import Callable
from enum import IntEnum

import structlog

from edl_workflows.exceptions import InvalidError, UnavailableError
from edl_workflows.master.state import views
from edl_workflows.master.state.job import JobDocument, JobState
from edl_workflows.master.state.messages import find_node
from edl_workflows.master.state.statistics import extend_history
from edl_workflows.master.state.transitions import settle_job
from edl_workflows.master.store import StateStore
from edl_workflows.protocol.nodes import Directive, NodeRef

TICK = 1.0
"""Seconds between two looks at time-outs."""
_COPIES = 6
"""How often what is known of a partition stands in the state: as parameter, position, lease, and once a checkpoint kept."""
LAZY = 5.0
"""Seconds within which mere progress is stored."""
RETRY = 0.5
"""Seconds before a failed write is repeated."""
LAST_WRITE = 5.0
"""Seconds in which a master that is told to end stores what nobody waits for."""
GAP = 10.0
"""Seconds between two looks at the clock beyond which it was set, or this process was stopped (ticks come each second)."""

log = structlog.get_logger(__name__)


class WriteUrgency(IntEnum):
    """How soon a change must be stored."""

    LAZY = 0
    GROUPED = 1
    NOW = 2


class Master:
    """Owns the state. All methods are for the loop's thread.

    Args:
        state: restored from `store`.
        store: where it is kept.
        clock: Unix seconds.
    """

    def __init__(self, state: JobState, store: StateStore, clock: Callable[[], float] = time.time) -> None:
        self.state = state
        self.clock = clock
        self.stored: JobDocument = state.document()
        """What a restarted master would find: effects outside follow it, never the state itself."""
        self.published = state.said
        self.commits = 0
        self._store = store
        self._change = 0
        self._durable = 0
        self._due = float("inf")
        self._last_write = 0.0
        # The master before may have had a clock that is ahead of this one.
        self._looked = max(clock(), state.newest_time)
        self._written = b""
        self._wake = asyncio.Event()
        self._moved = Broadcast()
        self._committed = Broadcast()

    async def run(self) -> None:
        """Commits and ticks until cancelled; what changed by then is stored."""
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
        """Unix seconds. A clock that was set is excused before its time reaches the state: else who is heard of first
        afterwards would be excused together with all others, and be silent for hours, or not for as long.
        """
        now = self.clock()
        gap, self._looked = now - self._looked, now
        if not -GAP < gap < GAP:
            log.warning("the clock was set, or this process was stopped", seconds=round(gap))
            self.state.shift_times(gap)
        return now

    def changed(self, hurry: WriteUrgency = WriteUrgency.GROUPED) -> int:
        """Draws the consequences of what was put into the state. Returns the change's number, for `durable`."""
        settle_job(self.state, self.now())
        if views.next_announcement(self.state) is not self.state.said:
            hurry = WriteUrgency.NOW
        self._moved.tell()
        return self.touched(hurry)

    def touched(self, hurry: WriteUrgency) -> int:
        """Something is to be stored that has no consequences."""
        self._change += 1
        pause = {WriteUrgency.NOW: 0.0, WriteUrgency.GROUPED: self._store.interval, WriteUrgency.LAZY: LAZY}[
            hurry
        ]
        due = self._last_write + pause
        if due < self._due:
            self._due = due
            self._wake.set()
        return self._change

    def check_room(self, size: int) -> None:
        """See that the state will fit where it is stored with a further data set.

        Args:
            size: bytes of its parameters.

        Raises:
            InvalidError: it may not. Once the state did not fit, the master could go on for no job at all.
        """
        wanted = len(self._written) + _COPIES * size
        if wanted > self._store.capacity:
            raise InvalidError(
                f"the job's state would have some {wanted} bytes with this data set, more than fit into {self._store.place} "
                f"({self._store.capacity}): register fewer partitions, or partitions with shorter names"
            )

    async def durable(self, change: int) -> None:
        """Waits until a change is stored."""
        while self._durable < change:
            await self._committed.wait()

    async def moved(self, seconds: float) -> None:
        """Waits until the state may have changed, or for so long."""
        await self._moved.wait(seconds)

    async def committed(self, seconds: float) -> None:
        """Waits for the next commit, or for so long."""
        await self._committed.wait(seconds)

    def directive(self, ref: NodeRef) -> Directive:
        """What this node is told, as far as it is stored.

        Raises:
            NotFoundError: the job never had such a node.
        """
        return views.directive_for(self.published, str(ref), known=find_node(self.state, ref) is not None)

    async def next_directive(self, ref: NodeRef, after: int, seconds: float) -> Directive:
        """The directive once its revision is beyond `after`, or after so many seconds as it is."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (directive := self.directive(ref)).revision <= after:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await self._committed.wait(left)
        return directive

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = self.now()
            self.state.statistics.take_records(views.records_done(self.state), now)
            self.state.history = extend_history(self.state.history, views.history_sample(self.state, now))
            self.changed(WriteUrgency.LAZY)

    async def _commit_forever(self) -> None:
        while True:
            pause = self._due - time.monotonic()
            if pause > 0:
                self._wake.clear()
                await _within(self._wake, min(pause, 3600.0))
                continue
            await self._commit()

    async def _commit(self) -> None:
        change, self._due, self._last_write = self._change, float("inf"), time.monotonic()
        self.state.said = views.next_announcement(self.state)
        document = self.state.document()
        text = document.to_json()
        if text != self._written:
            await self._write(text)
        self._written, self._durable = text, change
        self.stored, self.published = document, document.said
        self._committed.tell()

    async def _last_commit(self) -> None:
        """What changed since the last one; whoever was answered is stored already."""
        try:
            async with asyncio.timeout(LAST_WRITE):
                await self._commit()
        except TimeoutError:
            log.warning("the last progress is not stored: the store did not answer", seconds=LAST_WRITE)

    async def _write(self, text: bytes) -> None:
        while True:
            try:
                await self._save(text)
            except UnavailableError as error:
                log.warning("state not stored, trying again", error=str(error))
                await asyncio.sleep(RETRY)
            else:
                self.commits += 1
                return

    async def _save(self, text: bytes) -> None:
        # Cancelled or not, to its end: the store takes one document at a time.
        saving = asyncio.create_task(asyncio.to_thread(self._store.save, text))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.gather(saving, return_exceptions=True)
            raise


class Broadcast:
    """Wakes all who wait, once each time something happens."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wakes those who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Until the next `tell`, or for so long."""
        if seconds is None:
            await self._event.wait()
        else:
            await _within(self._event, seconds)


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
