"""An event loop whose clock jumps to the next timer, so that minutes of a master pass in seconds."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


class Clock:
    """Monotonic seconds that pass only while the loop would sleep."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _SkippingSelector(selectors.DefaultSelector):
    """Passes time instead of waiting for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will happen any more"
            self._clock.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Calls that would run in a thread are made at once."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


def run_in_virtual_time(
    main: Callable[[Clock], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a coroutine function, which gets the clock; meanwhile `time.monotonic` is this clock."""
    clock = Clock()
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", clock)
        loop = _VirtualLoop(_SkippingSelector(clock))
        try:
            loop.run_until_complete(main(clock))
        finally:
            loop.close()
