"""A call that is made once for all who request it within a moment."""

import asyncio
from collections.abc import Callable


class PacedCall:
    """Makes a call soon after it was requested, and takes at most half of the time of the loop.

    So a thousand requests at once cost a few calls, however long one takes; a call that takes no time is made
    in the next turn of the loop.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._handle: asyncio.Handle | None = None
        self._not_before = 0.0

    def request(self) -> None:
        """Have the call made soon."""
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_at(max(loop.time(), self._not_before), self.make_requested)

    def make_requested(self) -> None:
        """Make the call now, if it was requested and not made since."""
        if self._handle is None:
            return
        self._handle.cancel()
        self._handle = None
        clock = asyncio.get_running_loop().time
        begun = clock()
        self._call()
        self._not_before = 2 * clock() - begun
