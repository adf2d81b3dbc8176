"""Allocates ports of the machine. A cluster reserves blocks of ports: it listens on the first port of a
block, so that no other cluster can take it."""

import contextlib
import socket
from collections.abc import Iterable

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local.network.ports import LOOPBACK

FIRST, LAST = 20_000, 32_767
"""Below Linux's ephemeral range (32768-60999), so that no outgoing connection uses one of these ports."""
BLOCK = 256


class HostPorts:
    """Free ports from the blocks that this cluster has reserved; it reserves more when they run out.

    Args:
        seed: clusters with different seeds try different blocks first.
        keep: first ports of the blocks that an earlier process of this cluster had reserved.
    """

    def __init__(self, seed: int, keep: Iterable[int] = ()) -> None:
        self._seed = seed
        self._guards: dict[int, socket.socket] = {}
        for first in keep:
            self._claim(first)

    @property
    def blocks(self) -> list[int]:
        """First ports of the reserved blocks."""
        return sorted(self._guards)

    def allocate(self, taken: frozenset[int]) -> int:
        """A port outside `taken` on which no process listens now.

        Raises:
            UnavailableError: there is none in the whole range.
        """
        for first in self.blocks:
            port = self._free_in(first, taken)
            if port:
                return port
        for first in self._candidates():
            if self._claim(first) and (port := self._free_in(first, taken)):
                return port
        raise UnavailableError(
            f"no free port in {FIRST}-{LAST}: delete Services or pods, or stop other clusters"
        )

    def close(self) -> None:
        """Release the blocks."""
        for guard in self._guards.values():
            guard.close()
        self._guards.clear()

    def _candidates(self) -> list[int]:
        firsts = [first for first in range(FIRST, LAST - BLOCK + 2, BLOCK) if first not in self._guards]
        start = self._seed % len(firsts) if firsts else 0
        return firsts[start:] + firsts[:start]

    def _claim(self, first: int) -> bool:
        # Without SO_REUSEADDR, with which two clusters could both bind this port.
        guard = socket.socket()
        try:
            guard.bind((LOOPBACK, first))
            guard.listen(1)
        except OSError:
            guard.close()
            return False
        self._guards[first] = guard
        return True

    def _free_in(self, first: int, taken: frozenset[int]) -> int:
        ports = (port for port in range(first + 1, first + BLOCK) if port not in taken)
        return next((port for port in ports if _bindable(port)), 0)


def _bindable(port: int) -> bool:
    # A pod's server may bind to all interfaces, so no process may listen on any of them. This process itself
    # listens only on loopback.
    return _binds("", port) and _binds(LOOPBACK, port, listens=True)


def _binds(address: str, port: int, *, listens: bool = False) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        # A connection in TIME_WAIT does not prevent a server from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            if listens:
                probe.listen(1)
        except OSError:
            return False
    return True
