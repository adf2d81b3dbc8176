"""All-reduce over TCP without any framework: a ring in which each member sends to the next rank and hears
from the one before.

Sum and broadcast as of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations" (2009): each member's array is cut into as many parts as there are members; the parts travel
around the ring once to be summed, and once more to be known everywhere.
"""

import contextlib
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.training.collective.regrouping import Place

Floats = NDArray[np.float64]

CONNECT_SECONDS = 0.05
LOOK_SECONDS = 0.5
"""How often a member that waits for the rank before looks whether the next one is there."""
_HELLO = struct.Struct("!II")
"""Version and rank of who connects."""


class Ring:
    """One member's end of the ring. The constructor waits for its neighbours, however long they take.

    Args:
        place: who is where.

    Raises:
        OSError: nothing can be bound.
    """

    def __init__(self, place: Place) -> None:
        self._rank, self._size = place.rank, place.size
        if self._size == 1:
            return
        with socket.create_server(_host_and_port(place.addresses[place.rank])) as server:
            server.settimeout(CONNECT_SECONDS)
            self._next = _connect(place)
            while (before := _accept(server, place)) is None:
                if _closed(self._next):  # it was started again, or was of another version
                    self._next.close()
                    self._next = _connect(place)
        self._before = before
        self._before.settimeout(LOOK_SECONDS)
        for end in (self._next, self._before):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sender = ThreadPoolExecutor(1, "ring")

    def all_reduce(self, array: Floats) -> Floats:
        """The sum of all members' arrays.

        Raises:
            UnavailableError: a member is gone.
        """
        parts = np.array_split(array.copy(), self._size)
        for turn in range(self._size - 1):
            mine = parts[(self._rank - turn - 1) % self._size]
            mine += self._exchange(parts[(self._rank - turn) % self._size], len(mine))
        for turn in range(self._size - 1):
            mine = parts[(self._rank - turn) % self._size]
            mine[:] = self._exchange(parts[(self._rank - turn + 1) % self._size], len(mine))
        return np.concatenate(parts)

    def broadcast(self, array: Floats) -> Floats:
        """Rank 0's array.

        Raises:
            UnavailableError: a member is gone.
        """
        return self.all_reduce(array if self._rank == 0 else np.zeros_like(array))

    def close(self) -> None:
        """Leave, and let the neighbours know, and their neighbours: a ring without a member is of no use to
        anybody."""
        if self._size > 1:
            self._break()
            self._sender.shutdown()
            self._next.close()
            self._before.close()

    def _exchange(self, part: Floats, count: int) -> Floats:
        """Send a part to the next rank while one of so many numbers comes from the rank before."""
        sending = self._sender.submit(self._send, part.tobytes())
        try:
            received = self._receive(count * 8)
            sending.result()
        except OSError as error:
            self._break()
            raise UnavailableError(f"the ring of rank {self._rank} is broken: {error}") from error
        return np.frombuffer(received)

    def _receive(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            try:
                piece = self._before.recv(min(size - len(content), 2**20))
            except TimeoutError:
                if _closed(self._next):  # then nobody will come to send us anything, either
                    raise ConnectionResetError("the next rank has closed the connection") from None
                continue
            if not piece:
                raise ConnectionResetError("the rank before has closed the connection")
            content += piece
        return bytes(content)

    def _send(self, content: bytes) -> None:
        try:
            self._next.sendall(content)
        except OSError:
            self._break()  # the other direction would wait for ever
            raise

    def _break(self) -> None:
        for end in (self._next, self._before):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _connect(place: Place) -> socket.socket:
    """A connection to the next rank, as soon as it listens."""
    address = _host_and_port(place.addresses[(place.rank + 1) % place.size])
    while True:
        with contextlib.suppress(OSError):
            link = socket.create_connection(address, timeout=5.0)
            link.settimeout(None)
            link.sendall(_HELLO.pack(place.version, place.rank))
            return link
        time.sleep(CONNECT_SECONDS)


def _accept(server: socket.socket, place: Place) -> socket.socket | None:
    """The connection of the rank before, if it comes now."""
    expected = _HELLO.pack(place.version, (place.rank - 1) % place.size)
    try:
        link, _ = server.accept()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        link.settimeout(5.0)
        if link.recv(_HELLO.size, socket.MSG_WAITALL) == expected:
            return link
    link.close()
    return None


def _closed(link: socket.socket) -> bool:
    """Whether the other end is gone, of a connection on which it never sends anything."""
    try:
        return not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
