"""Forwards connections from a published port to the port on which the pod listens, where these differ.

Normally a pod listens directly on its Service's host port. That is impossible if two Services target the same
port of a pod, if a name was used before its Service existed and the Service then selects a different pod, or
while the Service's previous pod still listens on the port. In these cases the cluster process forwards the
bytes.
"""

import asyncio
import contextlib
import functools
from collections.abc import Mapping

import structlog

from edl_workflows.local.network.ports import LOOPBACK
from edl_workflows.runtime.process.connections import (
    ACCEPTED_IN_A_TURN,
    Connections,
    connection_limit,
    open_listeners,
)

_CHUNK = 256 * 1024
_log = structlog.get_logger(__name__)


class Forwarders:
    """Listeners by host port."""

    def __init__(self) -> None:
        self._servers: dict[int, asyncio.Server] = {}
        self._targets: dict[int, int] = {}
        self._connections = Connections(connection_limit() // 4)  # each uses two file descriptors

    async def update(self, targets: Mapping[int, int]) -> None:
        """Listen on exactly these ports.

        Args:
            targets: the host port of the pod for each host port to listen on.
        """
        for port in self._servers.keys() - targets.keys():
            self.release(port)
        self._targets = dict(targets)
        for port in targets.keys() - self._servers.keys():
            try:
                [listener] = open_listeners(LOOPBACK, port, self._connections)
                self._servers[port] = await asyncio.start_server(
                    functools.partial(self._serve, port), sock=listener, backlog=ACCEPTED_IN_A_TURN
                )
            except OSError as error:
                # The previous pod may still be ending; the next change of the cluster triggers another
                # attempt.
                _log.warning("port not forwarded", port=port, target=targets[port], error=str(error))

    def release(self, port: int) -> None:
        """Stop listening on a port at once, because a pod is about to listen on it."""
        self._targets.pop(port, None)
        if server := self._servers.pop(port, None):
            server.close()

    def close(self) -> None:
        for port in list(self._servers):
            self.release(port)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(LOOPBACK, self._targets.get(port, 0))
        except OSError:
            writer.transport.abort()  # as if no process listened
            return
        await asyncio.gather(_copy(reader, target_writer), _copy(target_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()  # one direction may end before the other
            return
    writer.close()
