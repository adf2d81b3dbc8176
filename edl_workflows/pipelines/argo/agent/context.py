"""The objects that all tasks of an agent share, and the agent's retries of API calls."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from edl_workflows.core.exceptions import ConflictError, ForbiddenError, UnavailableError
from edl_workflows.pipelines.argo.agent.metrics import ArgoAgentMetrics
from edl_workflows.pipelines.argo.agent.orphans import BegunObject
from edl_workflows.pipelines.argo.agent.threads import DaemonThreads
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.informer_group import InformerGroup, NamespacedInformer, ServedNamespaces

log = structlog.get_logger(__name__)
T = TypeVar("T")
Pause = Callable[[float], Awaitable[None]]

MIN_PAUSE = 0.2
MAX_PAUSE = 15.0
"""Seconds between attempts, doubled from MIN to MAX."""
REFUSED_SECONDS = 15.0
"""How long a forbidden call is retried: calls may be rejected for a moment while roles and tokens are
renewed."""
DOWN_SECONDS = 600.0
"""How long a failing call is retried while the watch of the task sets in the step's namespace works. If the
watch fails, too, the API server is down, or it refuses the agent in this namespace. Then calls are retried
without limit, because a failure could not be reported anyway."""


class MessagePace:
    """Limits the messages of all steps of an agent.

    Args:
        seconds: the time between two messages.
    """

    def __init__(self, seconds: float = 3.0) -> None:
        self._seconds = seconds
        self._next = 0.0

    async def wait_for_turn(self) -> None:
        """Wait until the next message may be written."""
        now = time.monotonic()
        turn = max(now, self._next)
        self._next = turn + self._seconds
        await asyncio.sleep(turn - now)


@dataclass(frozen=True)
class AgentContext:
    """The objects and settings that all tasks share.

    Attributes:
        cluster: the API server.
        watches: all watches of the agent.
        served: the namespaces whose workflows are served.
        task_sets: the watch of the WorkflowTaskSets.
        threads: runs blocking calls.
        metrics: the agent's metrics.
        guard: called before each write; raises if this process may no longer write.
        everywhere: whether to watch jobs in all namespaces at once.
        cross_namespace: whether a step may name another namespace than its workflow's.
        pace: limits the rate of the messages about waiting steps.
    """

    cluster: Cluster
    watches: InformerGroup
    served: ServedNamespaces
    task_sets: NamespacedInformer
    threads: DaemonThreads
    metrics: ArgoAgentMetrics
    guard: Callable[[], None]
    everywhere: bool
    cross_namespace: bool
    pace: MessagePace = field(default_factory=MessagePace)

    async def call(self, function: Callable[[], T]) -> T:
        """Call once, if this process is still the leader."""

        def guarded() -> T:
            self.guard()
            return function()

        return await self.threads.call(guarded)

    async def call_with_retries(
        self, function: Callable[[], T], namespace: str, pause: Pause = asyncio.sleep
    ) -> T:
        """Call until it succeeds or a limit passes; see `REFUSED_SECONDS`, `DOWN_SECONDS`.

        Args:
            function: may be called any number of times.
            namespace: where the step's task set is.
            pause: waits; may raise to end the attempts.

        Raises:
            EdlError: the error of the last attempt.
        """
        since, seconds = time.monotonic(), MIN_PAUSE
        while True:
            try:
                return await self.call(function)
            except (ForbiddenError, UnavailableError) as error:
                now = time.monotonic()
                if self.task_sets.error_in(namespace) is not None:
                    since = now
                limit = REFUSED_SECONDS if isinstance(error, ForbiddenError) else DOWN_SECONDS
                if now >= since + limit:
                    raise
                log.info("trying again", error=str(error))
            await pause(min(seconds, since + limit - now))
            seconds = min(MAX_PAUSE, 2 * seconds)

    async def call_until_success(
        self, function: Callable[[], T], action: str, pause: Pause = asyncio.sleep
    ) -> T:
        """Call until it succeeds, without a time limit: for work that no other process would do.

        Args:
            function: may be called any number of times.
            action: names the work in the log.
            pause: waits; may raise to end the attempts.
        """
        return await self.retry_until_success(lambda: self.call(function), action, pause)

    async def retry_until_success(
        self, attempt: Callable[[], Awaitable[T]], action: str, pause: Pause = asyncio.sleep
    ) -> T:
        """As `call_until_success`, for an attempt that may wait for other calls."""
        seconds = MIN_PAUSE
        while True:
            try:
                return await attempt()
            except (ForbiddenError, UnavailableError, ConflictError) as error:
                log.warning("not done; trying again", what=action, error=str(error))
            await pause(seconds)
            seconds = min(MAX_PAUSE, 2 * seconds)

    async def cancel(self, begun: BegunObject) -> None:
        """End the object that a step created, if the step still owns it and it has not ended."""
        done = await self.call_until_success(lambda: begun.cancel(self.cluster), f"cancel {begun.handle}")
        if done:
            self.metrics.cancelled(begun.action)
        log.info("cancelled" if done else "nothing to cancel", object=str(begun.handle), action=begun.action)


async def result_unless_set(event: asyncio.Event, awaitable: Awaitable[T]) -> T | None:
    """The awaitable's result; None if the event is set first. The awaitable is then cancelled."""
    main = asyncio.ensure_future(awaitable)
    stop = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({main, stop}, return_when=asyncio.FIRST_COMPLETED)
        return main.result() if main.done() else None
    finally:
        for task in (main, stop):
            task.cancel()
        await asyncio.gather(main, stop, return_exceptions=True)
