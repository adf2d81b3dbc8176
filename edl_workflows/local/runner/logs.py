"""The output of containers for ``pods/log``: read from the attempts' files, followed until the container ends."""

import asyncio
import bisect
import contextlib
import io
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.pods import LogRequest
from edl_workflows.local.runner.attempts import Attempt
from edl_workflows.local.runner.containers import ContainerRunner

_PIECE = 64 * 1024
_POLL_SECONDS = 0.1
RECORD_BYTES = 16
"""Length of a record of `shim.log_output`: two little-endian integers, position and nanoseconds since the epoch."""


async def read(request: LogRequest, container: ContainerRunner | None) -> AsyncIterator[bytes]:
    """The wanted part of a container's output.

    Raises:
        ApiError: 400, it has not started.
    """
    attempt = container.attempt_of(previous=request.previous) if container else None
    if container is None or attempt is None:
        what = f'container "{request.container}" in pod "{request.pod}"'
        if request.previous:
            raise errors.bad_request(f"previous terminated {what} not found")
        raise errors.bad_request(f"{what} {request.not_started}")
    times = LineTimes(attempt)
    position = await asyncio.to_thread(_start, attempt.log, request.tail_lines)
    if request.since is not None:
        position = max(position, await asyncio.to_thread(_first_since, attempt.log, times, request.since))
    left = request.limit_bytes
    begins_line = True
    async for at, piece in _pieces(attempt, position, request):
        answer = times.stamp(piece, at, begins_line=begins_line) if request.timestamps else piece
        begins_line = piece.endswith(b"\n")
        yield answer[:left]
        if left is not None and (left := left - len(answer)) <= 0:
            return


async def _pieces(attempt: Attempt, position: int, request: LogRequest) -> AsyncIterator[tuple[int, bytes]]:
    """The output from `position` on, with the position of each piece."""
    while True:
        # Asked before reading, so that what is written before the end is read after it.
        ended = attempt.ended() is not None
        if piece := _read(attempt.log, position, _PIECE):
            yield position, piece
            position += len(piece)
        elif ended or not request.follow:
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)


class LineTimes:
    """When the lines of an attempt's log were written, as its shim recorded it (`shim.log_output`).

    Args:
        attempt: whose log; where it has no records, its lines count as written at its start.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._file = attempt.log_times
        self._started = attempt.started_at() or datetime.now(UTC)

    def stamp(self, piece: bytes, position: int, *, begins_line: bool) -> bytes:
        """A piece of the log with its time before each line that begins in it.

        Args:
            piece: the piece.
            position: where in the log it stands.
            begins_line: whether a line begins with it.
        """
        stamped: list[bytes] = []
        with self._records() as records:
            for line in io.BytesIO(piece):
                stamped += [records.time_of(position) + b" ", line] if begins_line else [line]
                begins_line = True
                position += len(line)
        return b"".join(stamped)

    def first_since(self, since: datetime) -> int | None:
        """Where the first piece begins that was written at a time or later; None if there is none."""
        with self._records() as records:
            return records.first_since(int(since.timestamp() * 1e9))

    @contextlib.contextmanager
    def _records(self) -> "Iterator[_Records]":
        try:
            descriptor = os.open(self._file, os.O_RDONLY)
        except FileNotFoundError:
            descriptor = os.open(os.devnull, os.O_RDONLY)
        try:
            yield _Records(descriptor, self._started)
        finally:
            os.close(descriptor)


class _Records:
    """The open file of an attempt's times."""

    def __init__(self, descriptor: int, started: datetime) -> None:
        self._descriptor = descriptor
        self._numbers = range(os.fstat(descriptor).st_size // RECORD_BYTES)
        self._started = int(started.timestamp()) * 10**9
        self._last = 0

    def _begin(self, number: int) -> int:
        return int.from_bytes(os.pread(self._descriptor, 8, number * RECORD_BYTES), "little")

    def _time(self, number: int) -> int:
        return int.from_bytes(os.pread(self._descriptor, 8, number * RECORD_BYTES + 8), "little")

    def time_of(self, position: int) -> bytes:
        """When a byte of the log was written; positions are asked for in ascending order."""
        after = bisect.bisect_right(self._numbers, position, lo=self._last, key=self._begin)
        self._last = max(after - 1, 0)
        seconds, nanoseconds = divmod(self._time(self._last) if after else self._started, 10**9)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z".encode()

    def first_since(self, since: int) -> int | None:
        """Where the first piece begins that was written then or later; None if there is none."""
        if not self._numbers:
            return 0 if self._started >= since else None
        number = bisect.bisect_left(self._numbers, since, key=self._time)
        return self._begin(number) if number < len(self._numbers) else None


def _first_since(log: Path, times: LineTimes, since: datetime) -> int:
    """Where the first line begins that was written at a time or later: at or after the first such piece."""
    if not log.exists():
        return 0
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)  # before the records are read: what is written meanwhile is newer
        position = times.first_since(since)
        if position == 0:
            return 0
        if position is None:
            return end
        file.seek(position - 1)
        file.readline()
        return file.tell()


def _read(log: Path, position: int, size: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(position)
            return file.read(size)
    except FileNotFoundError:
        return b""


def _start(log: Path, lines: int | None) -> int:
    """Where the last `lines` lines begin."""
    if lines is None or not log.exists():
        return 0
    with log.open("rb") as file:
        position = file.seek(0, 2)
        if lines == 0:
            return position
        found = 0
        first = True
        while position > 0:
            size = min(_PIECE, position)
            position -= size
            file.seek(position)
            block = file.read(size)
            at = len(block) - 1 if first and block.endswith(b"\n") else len(block)  # the last line's own end
            first = False
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                found += 1
                if found == lines:
                    return position + at + 1
    return 0
