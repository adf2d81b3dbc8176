"""A standalone master with a short window of kept acknowledgements, which kills itself at a given point.

python -m tests.e2e.window_master FOLDER PORT WORKERS POINT SECONDS

The code that serves is the product's. Only the length of the window is changed, and the death is planted.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.datasets import AckRequest, LeaseRequest
from edl_workflows.services.master import master, server
from edl_workflows.services.master.data_calls import DataCalls
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from edl_workflows.services.master.stores.file import FileStore
from tests.e2e.pods import JOB, NAMESPACE

WINDOW = (1.0, 2.0)
"""Seconds after which kept acknowledgements are stored, in place of the product's 30 to 60."""
_SENT_SECONDS = 0.02
"""After which an answer has left the process."""


class Point(StrEnum):
    """Where a master dies."""

    NEVER = "never"
    ANYWHERE = "anywhere"
    LEASE_RECEIVED = "lease-received"
    LEASE_GRANTED = "lease-granted"
    LEASE_ANSWERED = "lease-answered"
    ACK_RECEIVED = "ack-received"
    ACK_ENTERED = "ack-entered"
    ACK_ANSWERED = "ack-answered"
    SNAPSHOT_DUE = "snapshot-due"
    SNAPSHOT_TORN = "snapshot-torn"
    SNAPSHOT_WRITTEN = "snapshot-written"
    SNAPSHOT_RENAMED = "snapshot-renamed"
    SNAPSHOT_STORED = "snapshot-stored"


_LEASE = (Point.LEASE_RECEIVED, Point.LEASE_GRANTED, Point.LEASE_ANSWERED)
_ACKNOWLEDGE = (Point.ACK_RECEIVED, Point.ACK_ENTERED, Point.ACK_ANSWERED)


def points_of(message: LeaseRequest | AckRequest) -> list[tuple[Point, Point, Point]]:
    """Where a master can die at a call: when it is received, entered and answered. A request for shards that
    carries what is done is two calls in one."""
    if isinstance(message, AckRequest):
        return [_ACKNOWLEDGE]
    return [_LEASE, _ACKNOWLEDGE] if message.done else [_LEASE]


class PlannedDeath:
    """The death of this process.

    Args:
        point: where.
        seconds: it lives for so long after its first call about data.
    """

    def __init__(self, point: Point, seconds: float) -> None:
        self._point = point
        self._seconds = seconds
        self._due = float("inf")

    def begin(self) -> None:
        """The first call about data has come; later ones change nothing."""
        if self._due == float("inf"):
            self._due = time.monotonic() + self._seconds
            if self._point is Point.ANYWHERE:
                threading.Timer(self._seconds, die).start()

    def is_at(self, point: Point) -> bool:
        """Whether the process must die at this point now."""
        return point is self._point and time.monotonic() >= self._due

    def reach(self, point: Point) -> None:
        """Die if this is the time and the point."""
        if self.is_at(point):
            die()

    def plant(self) -> None:
        """Make the calls and the store look for the death."""
        self._plant_call(DataCalls.lease)
        self._plant_call(DataCalls.acknowledge)
        self._plant_save()

    def _plant_call(self, inner: Callable[[DataCalls, str, Any], Awaitable[Any]]) -> None:
        async def call(calls: DataCalls, name: str, message: LeaseRequest | AckRequest) -> Any:
            self.begin()
            passed = points_of(message)
            for received, _, _ in passed:
                self.reach(received)
            reply = await inner(calls, name, message)
            for _, entered, answered in passed:
                self.reach(entered)
                if self.is_at(answered):
                    asyncio.get_running_loop().call_later(_SENT_SECONDS, die)
            return reply

        setattr(DataCalls, inner.__name__, call)

    def _plant_save(self) -> None:
        save, flush = FileStore.save, os.fsync
        flushed: list[Point] = []

        def flush_to_disk(fd: Any) -> None:
            flush(fd)
            if flushed:
                self.reach(flushed.pop(0))

        def save_document(store: FileStore, document: bytes) -> None:
            self.reach(Point.SNAPSHOT_DUE)
            if self.is_at(Point.SNAPSHOT_TORN):
                Path(store.place).with_suffix(".new").write_bytes(document[: len(document) // 2])
                die()
            flushed[:] = [Point.SNAPSHOT_WRITTEN, Point.SNAPSHOT_RENAMED]
            save(store, document)
            self.reach(Point.SNAPSHOT_STORED)

        os.fsync = flush_to_disk
        setattr(FileStore, save.__name__, save_document)


def die() -> NoReturn:
    """As by the kernel: nothing is flushed or answered any more."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL has ended this process")


def main() -> int:
    """Serve the job."""
    folder, port, workers, point, seconds = sys.argv[1:]
    master.KEPT = WINDOW
    PlannedDeath(Point(point), float(seconds)).plant()
    settings = JobSettings(JOB, NAMESPACE, parse_nodes(f"worker={workers}"), timeouts=Timeouts(heartbeat=120))
    address = server.ListenAddress("127.0.0.1", int(port))
    return server.run_standalone(settings, Path(folder), os.environ[names.ENV_JOB_TOKEN], address)


if __name__ == "__main__":
    sys.exit(main())
