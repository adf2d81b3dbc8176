"""One LIST+WATCH for all waiters of a process: `edl wait`, the operators and every deferred task of a
triggerer.

A waiter subscribes to one object. It gets the object's state at once and then each change. A thousand waiters
for the same cluster, namespace and kind need only one watch, which begins with the first waiter and ends with
the last. The informer's daemon thread reads the watch, so an event loop never blocks here. A restart of the
API server only delays states.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import Object, ObjectKey, Scope
from edl_workflows.runtime.kube.watch import EventType

BACKLOG = 256
"""Most states kept for a waiter that does not read. The oldest ones are dropped; the newest one, which
matters, always stays."""
PATIENCE = 3
"""After this number of refusals in a row (no rights, no such kind), waiters get the error, if the watch has
never worked. An unreachable server is retried without limit, because waiters have their own deadlines."""
LONG_PATIENCE = 8
"""The same for a watch that has worked before; with the informer's delays this takes half a minute.
Credentials and roles may be refused for a moment while they are renewed, and a failing waiter may end weeks
of training."""

T = TypeVar("T")
State = Object | None
"""The current state of an object; None while it does not exist."""
IsNews = Callable[[Object, Object], bool]
"""Whether a waiter needs the new state of an object after the one before."""


@dataclass(eq=False)
class _Waiter:
    """One subscription, the function that receives its states, and which changes it needs."""

    key: ObjectKey
    deliver: Callable[[State | EdlError], None]
    is_news: IsNews | None


@dataclass(eq=False)
class _Watch:
    """One informer and its waiters."""

    informer: Informer
    users: int = 0
    waiters: dict[ObjectKey, set[_Waiter]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    list_delivered: bool = False

    def add(self, waiter: _Waiter) -> None:
        with self.lock:
            self.waiters.setdefault(waiter.key, set()).add(waiter)
            if self.informer.synced:
                waiter.deliver(self.informer.cache.get(waiter.key))

    def discard(self, waiter: _Waiter) -> None:
        with self.lock:
            same = self.waiters.get(waiter.key, set())
            same.discard(waiter)
            if not same:
                self.waiters.pop(waiter.key, None)

    def deliver_change(self, change: ObjectChange) -> None:
        if not self.informer.synced:
            return  # `deliver_list` reports all states when the list is complete
        state = None if change.type is EventType.DELETED else change.object
        old = change.old
        with self.lock:
            for waiter in self.waiters.get(change.key, ()):
                if waiter.is_news is None or state is None or old is None or waiter.is_news(state, old):
                    waiter.deliver(state)

    def deliver_list(self) -> None:
        with self.lock:
            if self.list_delivered:
                return  # differences of later lists were reported as changes
            self.list_delivered = True
            for key, waiters in self.waiters.items():
                state = self.informer.cache.get(key)
                for waiter in waiters:
                    waiter.deliver(state)

    def deliver_error(self, error: EdlError, failures: int) -> None:
        patience = LONG_PATIENCE if self.informer.synced else PATIENCE
        if failures < patience or isinstance(error, UnavailableError):
            return
        with self.lock:
            for waiters in self.waiters.values():
                for waiter in waiters:
                    waiter.deliver(error)


class ThreadWaiting:
    """Waits by blocking the thread; its coroutines run in `run_blocking`."""

    def __init__(self) -> None:
        self.arrived = threading.Event()

    def notify(self) -> None:
        """End a wait; called in any thread."""
        self.arrived.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait until `arrived` is set.

        Raises:
            TimeoutError: it was not set in time.
        """
        if not self.arrived.wait(seconds):
            raise TimeoutError

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    async def call(self, function: Callable[[], T], seconds: float = math.inf) -> T:  # noqa: ARG002
        """Call a function that blocks; a thread can't abandon it."""
        return function()

    def call_later(self, function: Callable[[], None]) -> None:
        """Call a function that must not raise; a thread waits for it, too."""
        function()


class LoopWaiting:
    """Waits in the running event loop."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        """End a wait; called in any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self.arrived.set)

    async def wait(self, seconds: float | None) -> None:
        """As `ThreadWaiting.wait`."""
        async with asyncio.timeout(seconds):
            await self.arrived.wait()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[[], T], seconds: float = math.inf) -> T:
        """Call a function that blocks, in another thread.

        Raises:
            TimeoutError: it did not return in time; it goes on without this caller.
        """
        async with asyncio.timeout(None if math.isinf(seconds) else seconds):
            return await asyncio.to_thread(function)

    def call_later(self, function: Callable[[], None]) -> None:
        """Call a function that must not raise in another thread, without waiting for it."""
        self._loop.run_in_executor(None, function)


Waiting = ThreadWaiting | LoopWaiting
"""How a coroutine waits. Code for threads and for event loops is written once."""


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits only by a `ThreadWaiting`. No event loop is used: one may run in this thread
    already, and it would swallow the exceptions of signal handlers."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise RuntimeError(f"{coroutine} waits for an event loop")


class States:
    """The states of one object."""

    def __init__(self, informer: Informer, key: ObjectKey, waiting: Waiting) -> None:
        self._informer = informer
        self._key = key
        self._waiting = waiting
        self._states: deque[State | EdlError] = deque(maxlen=BACKLOG)

    @property
    def last_error(self) -> EdlError | None:
        """Why the watch is down at the moment, for the message of a deadline; None while it is up."""
        return self._informer.last_error

    @property
    def newest(self) -> State:
        """The present state, whether or not it was delivered; None also before the first list."""
        return self._informer.cache.get(self._key)

    async def next(self, seconds: float | None = None) -> State:
        """The next state.

        Args:
            seconds: how long to wait for it; None for no limit.

        Raises:
            TimeoutError: none came in time.
            EdlError: the server refuses the watch: ForbiddenError, NotFoundError (no such kind),
                InvalidError.
        """
        while True:
            self._waiting.arrived.clear()
            if self._states:
                state = self._states.popleft()
                if isinstance(state, EdlError):
                    raise state
                return state
            await self._waiting.wait(seconds)

    def deliver(self, state: State | EdlError) -> None:
        """Receive a state; called in the informer's thread."""
        self._states.append(state)
        self._waiting.notify()


class SharedWatches:
    """The watches of a process, by cluster, namespace and kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[tuple[ClusterSource, Scope], _Watch] = {}

    def __len__(self) -> int:
        """The number of running watches."""
        return len(self._watches)

    @contextmanager
    def states(
        self,
        source: ClusterSource,
        scope: Scope,
        name: str,
        waiting: Waiting,
        namespace: str = "",
        is_news: IsNews | None = None,
    ) -> Generator[States]:
        """Subscribe to one object. This never blocks.

        Args:
            source: the API server; the watch's thread connects once for all waiters with the same source and
                scope.
            scope: the kind and namespace; without a selector, all waiters share it.
            name: the object's.
            waiting: how the states are waited for.
            namespace: the object's, needed if the scope is all namespaces.
            is_news: called in the watch's thread with each change of the object; a state that is no news is
                not delivered. None: each state is.
        """
        watch = self._enter(source, scope)
        key = ObjectKey(scope.namespace or namespace, name)
        states = States(watch.informer, key, waiting)
        waiter = _Waiter(key, states.deliver, is_news)
        watch.add(waiter)
        try:
            yield states
        finally:
            watch.discard(waiter)
            self._leave(source, scope, watch)

    def _enter(self, source: ClusterSource, scope: Scope) -> _Watch:
        with self._lock:
            watch = self._watches.get((source, scope))
            if watch is None:
                watch = self._watches[source, scope] = _Watch(Informer(source, scope))
                watch.informer.on_change(watch.deliver_change)
                watch.informer.on_sync(watch.deliver_list)
                watch.informer.on_error(watch.deliver_error)
                watch.informer.start()
            watch.users += 1
            return watch

    def _leave(self, source: ClusterSource, scope: Scope, watch: _Watch) -> None:
        with self._lock:
            watch.users -= 1
            if watch.users:
                return
            del self._watches[source, scope]
        watch.informer.stop(join_seconds=0)  # the caller may be an event loop: the thread ends by itself


SHARED = SharedWatches()
"""The watches of this process. The value is global on purpose, so that all waiters share the same watches."""
