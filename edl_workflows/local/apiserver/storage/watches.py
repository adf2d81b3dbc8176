"""Watches of the store: each turns the changes of one resource into the events that its reader wants."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.storage.revisions import (
    ADDED,
    DELETED,
    MODIFIED,
    Match,
    Object,
    StoredChange,
    encode_object,
)

MAX_PENDING_BYTES = 16 * 2**20
"""Total size of the events that a watch may lag behind, without its initial events."""
BATCH_BYTES = 2**20
"""Total size of the events that a reader receives at once; a larger event comes alone."""


class StoreEvent(NamedTuple):
    """An event of a watch: type, resourceVersion and the encoded object."""

    type: str
    rv: int
    body: bytes

    def decode(self) -> Object:
        obj: Object = json.loads(self.body)
        return obj


class StoreWatch:
    """A subscription to the changes of one resource. Close it, or use it as a context manager.

    Args:
        namespace: where the objects are; empty for all namespaces.
        match: which objects the reader wants.
        most_pending: number of events that the reader may lag behind, without the replayed ones.
        on_close: called with the watch when it is closed.
    """

    def __init__(
        self, namespace: str, match: Match, *, most_pending: int, on_close: Callable[["StoreWatch"], None]
    ) -> None:
        self._namespace = namespace
        self._match = match
        self._most_pending = most_pending
        self._on_close = on_close
        self._pending: deque[StoreEvent] = deque()
        self._pending_bytes = 0
        self._replayed = (0, 0)
        self._wake = asyncio.Event()
        self._lost = False
        self.ended = False
        """Set when the store ends its watches: no more events will come."""

    def replay(self, changes: Iterable[StoredChange]) -> None:
        """Queue changes of the history, regardless of the limit; called by the store."""
        for event in filter(None, map(self._view, changes)):
            self._queue(event)
        self._replayed = len(self._pending), self._pending_bytes

    def offer(self, change: StoredChange) -> None:
        """Queue the change if it concerns this watch; called by the store."""
        event = self._view(change)
        if event is None or self._lost:
            return
        self._queue(event)
        count, size = self._replayed
        if len(self._pending) > count + self._most_pending or self._pending_bytes > size + MAX_PENDING_BYTES:
            self._lost = True  # the reader is too slow and must list again
            self._pending.clear()
            self._pending_bytes = 0

    def _queue(self, event: StoreEvent) -> None:
        self._pending.append(event)
        self._pending_bytes += len(event.body)
        self._wake.set()

    def _view(self, change: StoredChange) -> StoreEvent | None:
        revision, previous = change.revision, change.previous
        if self._namespace and revision.key.namespace != self._namespace:
            return None
        now = change.type != DELETED and self._match(revision)
        before = previous is not None and self._match(previous)
        if now:
            return StoreEvent(MODIFIED if before else ADDED, revision.rv, revision.body)
        if not before or previous is None:
            return None
        if change.type == DELETED:
            return StoreEvent(DELETED, revision.rv, revision.body)
        # The object no longer matches the selectors. As in Kubernetes, its last matching state is sent, with
        # the revision of this change.
        gone = previous.decode()
        gone["metadata"]["resourceVersion"] = str(revision.rv)
        return StoreEvent(DELETED, revision.rv, encode_object(gone))

    async def batch(self, wait: float | None = None) -> list[StoreEvent]:
        """The events since the last call. Waits at most `wait` seconds for the first; empty if none came. If
        there are many, the next call returns more.

        Raises:
            ApiError: 410 Expired, this reader was too slow; list again.
        """
        if not self._pending:
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                if not self._pending:  # a change may have arrived just before the timeout
                    return []
        self._wake.clear()
        if self._lost:
            raise errors.expired_error("too many changes since the last read of this watch; list again")
        events, size = [], 0
        while self._pending and size < BATCH_BYTES:
            events.append(self._pending.popleft())
            size += len(events[-1].body)
        self._pending_bytes -= size
        return events

    def end(self) -> None:
        """Wake the reader for the last time."""
        self.ended = True
        self._wake.set()

    def close(self) -> None:
        self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
