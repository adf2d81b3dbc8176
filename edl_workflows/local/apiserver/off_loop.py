"""Long computations in worker threads, beside the event loop.

A write is a generator that yields each potentially long computation; such a computation depends only on its
arguments. The code between two computations runs on the event loop, in one step, and sees the store as it is
at that time.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
Computations = Generator[Callable[[], Any], Any, T]
"""A generator that yields computations, receives their results, and returns a T."""

LONG_BYTES = 8 * 1024
"""Size of a body or an object from which processing may take more than a few milliseconds."""
_AT_ONCE = 2
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
"""Per event loop; the other threads of its pool remain free for file access."""


async def off_loop(compute: Callable[[], T]) -> T:
    """Compute in a worker thread; the interpreter lets the event loop continue meanwhile."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
        return await asyncio.to_thread(compute)


def run(computations: Computations[T]) -> T:
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
            await asyncio.sleep(0)  # others, before the answer is made
            value: T = stop.value
            return value
        result = await off_loop(compute)
