"""Runs long computations in worker threads, so that they don't block the event loop.

A write is a generator that yields each potentially long computation and receives its result. A computation
depends only on its arguments. The code between two computations runs on the event loop without interruption
and sees the current store.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
Computations = Generator[Callable[[], Any], Any, T]
"""A generator that yields computations, receives their results, and returns a T."""

LONG_BYTES = 8 * 1024
"""Size in bytes of a body or object from which processing may take more than a few milliseconds."""
_AT_ONCE = 2
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
"""Concurrent computations per event loop; the other threads of its pool remain free for file access."""


async def off_loop(compute: Callable[[], T]) -> T:
    """Run a computation in a worker thread while the event loop continues."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
        return await asyncio.to_thread(compute)


def run_computations(computations: Computations[T]) -> T:
    """Run all steps and computations in the calling thread."""
    result: Any = None
    while True:
        try:
            result = computations.send(result)()
        except StopIteration as stop:
            value: T = stop.value
            return value


async def run_off_loop(computations: Computations[T]) -> T:
    """Run the computations in a worker thread."""
    result: Any = None
    while True:
        try:
            compute = computations.send(result)
        except StopIteration as stop:
            await asyncio.sleep(0)  # lets other requests run before the response is built
            value: T = stop.value
            return value
        result = await off_loop(compute)
