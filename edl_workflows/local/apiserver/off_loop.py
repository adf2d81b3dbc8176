"""Long computations beside the event loop, in worker threads.

A write is a generator that yields each computation that may be long: one that needs nothing but its
arguments. What stands between two computations runs on the loop, in one step, and finds the store as it is
then.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
Computations = Generator[Callable[[], Any], Any, T]
"""Yields computations, gets their results, returns a T."""

LONG_BYTES = 8 * 1024
"""Of a body or an object: those that are longer may take more than a few milliseconds."""
_AT_ONCE = 2
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
"""Of each event loop: the other threads of its pool are left to those who wait for files."""


async def off_loop(compute: Callable[[], T]) -> T:
    """Compute in a worker thread; the interpreter lets the event loop go on meanwhile."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
        return await asyncio.to_thread(compute)


def run(computations: Computations[T]) -> T:
    """Carry out in one step of the calling thread."""
    result: Any = None
    while True:
        try:
            result = computations.send(result)()
        except StopIteration as stop:
            value: T = stop.value
            return value


async def run_off_loop(computations: Computations[T]) -> T:
    """Carry out with the computations in a worker thread."""
    result: Any = None
    while True:
        try:
            compute = computations.send(result)
        except StopIteration as stop:
            await asyncio.sleep(0)  # others, before the answer is made
            value: T = stop.value
            return value
        result = await off_loop(compute)
