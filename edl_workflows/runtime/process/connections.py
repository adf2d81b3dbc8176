"""Bounds the connections of a server in number and in time.

A `Listener` is the socket on which an event loop accepts connections, and `Connections` counts the open ones.
At the limit, the connection that has waited longest for a request is dropped to make room for the new one:
clients that connect and send nothing cannot keep out clients that send requests. If all connections are busy,
the new one is refused. Running out of file descriptors is handled here, too: asyncio would log it thousands
of times a second.
"""

import contextlib
import enum
import errno
import os
import resource
import select
import socket
import time
import weakref
from typing import Any, Self

import structlog

from edl_workflows.runtime.process.log_limit import LogLimit

MAX_DESCRIPTORS = 65_536
"""Limit of open files that a process requests. A higher one would slow down programs that close every
possible descriptor.
"""
MAX_CONNECTIONS = 8192
"""Largest number of connections of a server. An idle TLS connection takes about 50 KiB."""
BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""
ACCEPTED_IN_A_TURN = 64
"""Connections accepted per turn of the event loop, so that a thousand at once do not block its other work."""
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger(__name__)


def raise_descriptor_limit() -> int:
    """Raise this process's limit on open files as far as allowed, up to `MAX_DESCRIPTORS`. Return the new
    limit."""
    soft, hard = (_finite(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    allowed = min(hard, MAX_DESCRIPTORS)
    if soft < allowed:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (allowed, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            )
            return allowed
    return soft


def _finite(limit: int) -> int:
    return MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit


def connection_limit() -> int:
    """The number of connections a server may have: half of the file descriptors, which leaves the rest for
    its work."""
    return min(MAX_CONNECTIONS, raise_descriptor_limit() // 2)


class AwaitedInput(enum.Enum):
    """What the server still expects from the client of a connection."""

    REQUEST = "request"
    BODY = "body"


class Connection(socket.socket):
    """An accepted connection, with the deadlines by which its client must send something."""

    _of: "Connections | None" = None
    _number = -1

    def belong(self, connections: "Connections") -> Self:
        """Count this connection in `connections` until it is closed."""
        self._of, self._number = connections, self.fileno()
        self.deadlines: dict[AwaitedInput, float] = {}
        return self

    def expect(self, awaited: AwaitedInput, seconds: float) -> None:
        """Set a deadline: the client must send this within `seconds`."""
        self.deadlines[awaited] = time.monotonic() + seconds

    def received(self, awaited: AwaitedInput) -> None:
        self.deadlines.pop(awaited, None)

    def drop(self) -> None:
        """Shut the connection down. The event loop notices that at once and closes it."""
        with contextlib.suppress(OSError):  # the client has already disconnected
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._of is not None:
            self._of.forget(self._number)
        super().close()


class Connections:
    """The open connections of one server, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: weakref.WeakValueDictionary[int, Connection] = weakref.WeakValueDictionary()
        self._idle: dict[int, None] = {}
        self._log_limit = LogLimit()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, accepted: socket.socket, seconds: float | None) -> Connection:
        """Count an accepted connection.

        Args:
            accepted: the socket of the connection.
            seconds: time within which its first request must arrive; None for connections that do not carry
                requests.
        """
        connection = Connection(fileno=accepted.detach()).belong(self)
        self._open[connection.fileno()] = connection
        if seconds is not None:
            self.set_idle(connection, seconds)
        return connection

    def of(self, number: int) -> Connection:
        """The open connection with this file descriptor."""
        return self._open[number]

    def set_idle(self, connection: Connection, seconds: float) -> None:
        """Mark the connection as waiting for a request, which must arrive within `seconds`."""
        connection.expect(AwaitedInput.REQUEST, seconds)
        self._idle.pop(connection.fileno(), None)
        self._idle[connection.fileno()] = None  # appended, so that the longest waiting comes first

    def set_busy(self, connection: Connection) -> None:
        """Mark the connection as serving a request, so that it is no longer dropped in favour of others."""
        connection.received(AwaitedInput.REQUEST)
        self._idle.pop(connection.fileno(), None)

    def forget(self, number: int) -> None:
        self._open.pop(number, None)
        self._idle.pop(number, None)

    def drop_idle(self) -> bool:
        """Drop the connection that has waited longest for a request. Return False if none is idle."""
        for number in list(self._idle)[:1]:
            del self._idle[number]
            if (connection := self._open.get(number)) is not None:
                connection.drop()
            self.log_event("connection dropped in favour of another one")
            return True
        return False

    def drop_late(self) -> None:
        """Drop the connections whose clients have missed a deadline."""
        now = time.monotonic()
        for connection in list(self._open.values()):
            if any(deadline < now for deadline in connection.deadlines.values()):
                connection.deadlines.clear()
                connection.drop()

    def log_event(self, event: str) -> None:
        """Log what happened to a connection, at a limited rate."""
        if (left_out := self._log_limit.admit(event)) is not None:
            log.warning(event, open=len(self._open), limit=self.limit, left_out=left_out)


class Listener(socket.socket):
    """A listening socket for an asyncio event loop that accepts no more connections than may be open.

    Args:
        family: address family.
        address: address to bind to.
        connections: the open connections of all listeners of the server.
        seconds: time within which the first request on a connection must arrive; None: idle connections are
            never dropped.

    Raises:
        OSError: the address is not available.
    """

    def __init__(
        self, family: int, address: Any, connections: Connections, seconds: float | None = None
    ) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._connections = connections
        self._seconds = seconds
        self._pending = select.poll()
        self._pending.register(self, select.POLLIN)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self.bind(address)
        except OSError:
            self.close()
            raise

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Listen. Asyncio passes the number of connections that it accepts per turn, but the kernel may queue
        more."""
        super().listen(max(backlog, BACKLOG))

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection.

        Raises:
            BlockingIOError: no connection is waiting, or there is no room for one yet.
        """
        if len(self._connections) >= self._connections.limit:
            if self._pending.poll(0) and not self._connections.drop_idle():
                self._refuse()
            raise BlockingIOError  # there is room when the event loop has closed the dropped connection
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._connections.drop_idle()
            self._refuse()
            raise BlockingIOError from error
        return self._connections.add(accepted, self._seconds), address

    def _refuse(self) -> None:
        """Accept the next connection and close it, so that the event loop is not called for it again and
        again."""
        self._connections.log_event("connection refused: too many are open")
        os.close(self._spare)
        try:
            with contextlib.suppress(OSError):
                super().accept()[0].close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


def open_listeners(
    host: str, port: int, connections: Connections, seconds: float | None = None
) -> list[Listener]:
    """Listen on all addresses of a host that this machine has. ``localhost`` often resolves to an IPv6
    address even if IPv6 is disabled.

    Args:
        host: name or address; "" for all addresses of this machine.
        port: port number; 0 for any free port.
        connections: see `Connections`.
        seconds: see `Listener`.

    Raises:
        OSError: an address is taken, or the machine has none of them.
    """
    addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[Listener] = []
    absent: OSError | None = None
    try:
        for family, _type, _protocol, _name, address in dict.fromkeys(addresses):
            try:
                listeners.append(Listener(family, address, connections, seconds))
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                absent = error
        if absent is not None and not listeners:
            raise absent
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
