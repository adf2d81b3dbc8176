"""Runs blocking calls for an event loop in daemon threads, so that a hanging call does not keep the process
from exiting."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class DaemonThreads:
    """Runs a limited number of calls at a time; others wait.

    Args:
        limit: number of calls.
    """

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def call(self, function: Callable[[], T]) -> T:
        """Run the function in a thread. Return its result or raise its exception. If the caller is
        cancelled, the thread continues."""
        async with self._slots:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[T] = loop.create_future()

            def work() -> None:
                try:
                    result = function()
                except BaseException as error:  # noqa: BLE001 - the caller's to judge
                    deliver(_fail, error)
                else:
                    deliver(_succeed, result)

            def deliver(settle: Callable[..., None], value: object) -> None:
                with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
                    loop.call_soon_threadsafe(settle, future, value)

            threading.Thread(target=work, name="argo-agent", daemon=True).start()
            return await future


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
