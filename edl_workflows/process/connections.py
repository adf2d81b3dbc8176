"""Connections of a server, bounded in number and in time, whoever opens them.

A `Listener` is the socket that an event loop accepts from. `Connections` counts what is open. When as many are open as
may be, the one that has waited longest for a request is dropped in favour of the new one: clients that connect and say
nothing can't keep out those that ask. When all of them are busy, the new one is refused. A lack of descriptors is
handled here, too: asyncio would log it thousands of times in a second.
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

from edl_workflows.process.log_limit import LogLimit

MAX_DESCRIPTORS = 65_536
"""What a process asks for. More would slow down programs that close all descriptors they might have."""
MAX_CONNECTIONS = 8192
"""Of one server. An idle TLS connection takes some 50 KiB."""
BACKLOG = 1024
"""Connections that the kernel holds until they are accepted."""
ACCEPTED_IN_A_TURN = 64
"""By an event loop, so that a thousand connections at once do not keep it from its other work."""
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger(__name__)


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as it may, up to `MAX_DESCRIPTORS`; the limit after that."""
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
    """How many connections a server may have: half of the descriptors, which leaves the rest for its work."""
    return min(MAX_CONNECTIONS, raise_descriptor_limit() // 2)


class Awaited(enum.Enum):
    """What the server waits for, from the client of a connection."""

    REQUEST = "request"
    BODY = "body"


class Connection(socket.socket):
    """An accepted connection, and until when its client must do what it owes."""

    _of: "Connections | None" = None
    _number = -1

    def belong(self, connections: "Connections") -> Self:
        """Be counted among `connections` until closed."""
        self._of, self._number = connections, self.fileno()
        self.deadlines: dict[Awaited, float] = {}
        return self

    def expect(self, awaited: Awaited, seconds: float) -> None:
        """The client owes this from now on, within so many seconds."""
        self.deadlines[awaited] = time.monotonic() + seconds

    def received(self, awaited: Awaited) -> None:
        """The client owes this no longer."""
        self.deadlines.pop(awaited, None)

    def drop(self) -> None:
        """Cut it off. The event loop notices at once, and closes it."""
        with contextlib.suppress(OSError):  # the client went away by itself
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, and make room for another one."""
        if self._of is not None:
            self._of.forget(self._number)
        super().close()


class Connections:
    """The open connections of one server.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: weakref.WeakValueDictionary[int, Connection] = weakref.WeakValueDictionary()
        self._idle: dict[int, None] = {}
        self._told = LogLimit()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, accepted: socket.socket, seconds: float | None) -> Connection:
        """Count an accepted connection, whose first request must arrive within so many seconds, if it is for requests."""
        connection = Connection(fileno=accepted.detach()).belong(self)
        self._open[connection.fileno()] = connection
        if seconds is not None:
            self.set_idle(connection, seconds)
        return connection

    def of(self, number: int) -> Connection:
        """The open connection of a descriptor."""
        return self._open[number]

    def set_idle(self, connection: Connection, seconds: float) -> None:
        """It waits for a request, which must arrive within so many seconds."""
        connection.expect(Awaited.REQUEST, seconds)
        self._idle.pop(connection.fileno(), None)
        self._idle[connection.fileno()] = None  # at the end: the order is that of waiting

    def set_busy(self, connection: Connection) -> None:
        """A request has arrived: it is not dropped in favour of others."""
        connection.received(Awaited.REQUEST)
        self._idle.pop(connection.fileno(), None)

    def forget(self, number: int) -> None:
        """A connection was closed."""
        self._open.pop(number, None)
        self._idle.pop(number, None)

    def drop_idle(self) -> bool:
        """Drop the connection that has waited longest for a request; whether there was one."""
        for number in list(self._idle)[:1]:
            del self._idle[number]
            if (connection := self._open.get(number)) is not None:
                connection.drop()
            self.tell("connection dropped in favour of another one")
            return True
        return False

    def drop_late(self) -> None:
        """Drop the connections whose clients did not do in time what they owe."""
        now = time.monotonic()
        for connection in list(self._open.values()):
            if any(deadline < now for deadline in connection.deadlines.values()):
                connection.deadlines.clear()
                connection.drop()

    def tell(self, event: str) -> None:
        """Log what happened to a connection, but not each time."""
        if (left_out := self._told.admit(event)) is not None:
            log.warning(event, open=len(self._open), limit=self.limit, left_out=left_out)


class Listener(socket.socket):
    """A listening socket for an event loop of asyncio that accepts no more than may be open.

    Args:
        family: address family.
        address: to bind to.
        connections: what is open, of all listeners of the server.
        seconds: for the first request on a connection; None: connections are not dropped in favour of others.

    Raises:
        OSError: the address can't be had.
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
        """Listen. asyncio says how many it accepts in a turn; the kernel may hold more."""
        super().listen(max(backlog, BACKLOG))

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            BlockingIOError: none for now.
        """
        if len(self._connections) >= self._connections.limit:
            if self._pending.poll(0) and not self._connections.drop_idle():
                self._refuse()
            raise BlockingIOError  # once the loop has closed the dropped one, there is room
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
        """Accept the next connection and close it, so that the loop is not called for it again and again."""
        self._connections.tell("connection refused: too many are open")
        os.close(self._spare)
        try:
            with contextlib.suppress(OSError):
                super().accept()[0].close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Stop listening."""
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


def listen(host: str, port: int, connections: Connections, seconds: float | None = None) -> list[Listener]:
    """Listeners on all addresses of a host that this machine has: ``localhost`` often has one for IPv6, where IPv6 is off.

    Args:
        host: a name or an address; "" for all of this machine.
        port: 0 for any free one.
        connections: see `Connections`.
        seconds: see `Listener`.

    Raises:
        OSError: an address is taken, or the machine has none of them.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[Listener] = []
    absent: OSError | None = None
    try:
        for family, _type, _protocol, _name, address in dict.fromkeys(found):
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
