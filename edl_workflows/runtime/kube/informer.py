"""Keeps a cache of one scope up to date by LIST and WATCH, in one thread; used by the controller, the master,
the CLI and `shared`.

``kubernetes.informer`` (36.0) is not used: it deserializes each object into models, does not support lists of
custom objects (``getattr(response, "items")`` of a dict is a method), requests neither bookmarks nor pages,
reconnects without delay when the server rejects it, and its ``stop`` waits for the next event.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import EdlError, NotFoundError
from edl_workflows.core.jobs import cache_fields
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import IndexFunction, KeepFunction, ObjectCache, ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.errors import ExpiredError
from edl_workflows.runtime.kube.resources import Object, Scope, version_of
from edl_workflows.runtime.kube.watch import EventType, StreamedEvent, WatchStream

log = structlog.get_logger(__name__)

MIN_DELAY = 0.2
MAX_DELAY = 15.0
"""Seconds between attempts while the server fails: doubled from MIN to MAX, plus up to a quarter at random,
so that many clients do not reconnect at the same time. MAX limits how late a change is seen after the server
is back."""


class Informer:
    """Keeps a cache in sync with the API server, and notifies listeners of each change.

    A broken connection is resumed from the last resourceVersion. If the server no longer knows that version,
    the scope is listed again, and listeners are notified only of the differences. The informer runs until
    `stop`. It also waits for a kind that the server does not have, and lists it when the server does.

    Args:
        source: the API server; the informer's thread connects to it.
        scope: what to watch.
        indices, keep: see `ObjectCache`.
    """

    def __init__(
        self,
        source: ClusterSource,
        scope: Scope,
        indices: Mapping[str, IndexFunction] | None = None,
        keep: KeepFunction = cache_fields.keep_whole,
    ) -> None:
        self.scope = scope
        self.cache = ObjectCache(indices, keep)
        self.last_error: EdlError | None = None
        """Why the watch is down; None while it is up."""
        self._source = source
        self._on_change: list[Callable[[ObjectChange], None]] = []
        self._on_leave: list[Callable[[Object], None]] = []
        self._on_error: list[Callable[[EdlError, int], None]] = []
        self._on_sync: list[Callable[[], None]] = []
        self._cluster: Cluster | None = None
        self._version = ""
        self._stream: WatchStream | None = None
        self._synced = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"informer {scope}", daemon=True)

    @property
    def synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self._synced.is_set()

    def on_change(self, listener: Callable[[ObjectChange], None]) -> None:
        """Call `listener` with each change, in the informer's thread; it must be quick and must not raise."""
        self._on_change.append(listener)

    def on_leave(self, listener: Callable[[Object], None]) -> None:
        """Call `listener` with the last known state of each object that others have deleted, before it leaves
        the cache, and before `on_change`; of several that a LIST lacks, before the first of them leaves."""
        self._on_leave.append(listener)

    def on_error(self, listener: Callable[[EdlError, int], None]) -> None:
        """Call `listener` with each failure and the number of consecutive failures, including this one."""
        self._on_error.append(listener)

    def on_sync(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each LIST, when the cache is complete."""
        self._on_sync.append(listener)

    def start(self) -> None:
        """Start a daemon thread."""
        self._thread.start()

    def stop(self, join_seconds: float = 5.0) -> None:
        """End the watch; callable from any thread, including the informer's own."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(join_seconds)

    def wait_synced(self, seconds: float) -> bool:
        """Wait for the first LIST. Return False on time-out; `last_error` then has the cause."""
        return self._synced.wait(seconds)

    def put(self, obj: Object) -> None:
        """Write through the server's answer to a create or patch."""
        self.cache.write_through(obj)

    def remove(self, obj: Object) -> None:
        """Write through the deletion of an object."""
        self.cache.remove(obj)

    def refresh(self, cluster: Cluster) -> None:
        """LIST in the caller's thread, beside the watch, which may lag behind.

        Raises:
            EdlError: the LIST failed.
        """
        self._store(client.list_objects(cluster, self.scope))

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self._cluster = cluster = self._cluster or self._source.connect()
                if not self._version:
                    self._list(cluster)
                self._watch(cluster)
            except ExpiredError:
                self._version = ""
                self._breathe(started)
            except Exception as error:  # noqa: BLE001 - many callers depend on this thread; it must survive
                # The end of a watch that worked for a while counts as the first failure.
                failures = 1 if time.monotonic() - started > MAX_DELAY else failures + 1
                self._failed(self._explained(error), failures)
                spread = 1 + random.random() / 4  # noqa: S311 - no secret
                self._stopped.wait(Backoff(MIN_DELAY, MAX_DELAY).delay(failures) * spread)
            else:
                failures = 0
                self._breathe(started)

    def _breathe(self, started: float) -> None:
        """Pause after a very short attempt, so that a server is not flooded with requests if it ends watches
        at once, or no longer knows a version that it has just returned."""
        if time.monotonic() - started < MIN_DELAY:
            self._stopped.wait(MIN_DELAY)

    def _explained(self, error: Exception) -> EdlError:
        """The error to report for any failure."""
        self._cluster = None  # credentials or the server's address may have been renewed
        if isinstance(error, NotFoundError):
            self._version = ""  # the kind's definition was deleted; a new one begins with other objects
        if isinstance(error, EdlError):
            return error
        # An error of the source's `connect`, or a defect of a listener or an index: start over with a LIST.
        self._version = ""
        log.error("informer failed", scope=str(self.scope), exc_info=error)
        return EdlError(f"cannot watch {self.scope}: {type(error).__name__}: {error}")

    def _failed(self, error: EdlError, failures: int) -> None:
        self.last_error = error
        for listener in self._on_error:
            listener(error, failures)

    def _list(self, cluster: Cluster) -> None:
        listed = client.list_objects(cluster, self.scope)
        self._store(listed)
        self._version = listed.resource_version
        self.last_error = None
        self._synced.set()
        for listener in self._on_sync:
            listener()

    def _store(self, listed: client.ObjectList) -> None:
        for obj in self.cache.gone(listed.items, listed.resource_version):
            self._leave(obj)
        for change in self.cache.replace(listed.items, listed.resource_version):
            self._tell(change)

    def _watch(self, cluster: Cluster) -> None:
        self._stream = stream = WatchStream(cluster, self.scope, self._version)
        if self._stopped.is_set():
            return
        for event in stream:
            self.last_error = None
            self._take(event)
            self._version = event.resource_version

    def _take(self, event: StreamedEvent) -> None:
        if event.type is EventType.BOOKMARK:
            return
        if event.type is EventType.DELETED:
            if self.cache.holds(event.object):
                self._leave(event.object)
            change = self.cache.remove(event.object, version_of(event.object))
        else:
            change = self.cache.put(event.object)
        if change is not None:
            self._tell(change)

    def _leave(self, obj: Object) -> None:
        for listener in self._on_leave:
            listener(obj)

    def _tell(self, change: ObjectChange) -> None:
        for listener in self._on_change:
            listener(change)
