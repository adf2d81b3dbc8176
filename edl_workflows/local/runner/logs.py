"""Serves ``pods/log``: reads the output of containers from the files of their attempts."""

import asyncio
import bisect
import contextlib
import io
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.subresources import LogRequest
from edl_workflows.local.runner.attempts import Attempt
from edl_workflows.local.runner.containers import ContainerRunner
from edl_workflows.local.runner.log_files import RECORD_BYTES, LogFiles

_PIECE = 64 * 1024
_POLL_SECONDS = 0.1


async def read(request: LogRequest, container: ContainerRunner | None) -> AsyncIterator[bytes]:
    """The requested part of a container's output.

    Raises:
        ApiError: 400, the container has not started.
    """
    attempt = container.attempt_of(previous=request.previous) if container else None
    if container is None or attempt is None:
        subject = f'container "{request.container}" in pod "{request.pod}"'
        if request.previous:
            raise errors.bad_request(f"previous terminated {subject} not found")
        raise errors.bad_request(f"{subject} {request.not_started}")
    with container.reading():
        async for answer in _read_attempt(request, container, attempt):
            yield answer


async def _read_attempt(
    request: LogRequest, container: ContainerRunner, attempt: Attempt
) -> AsyncIterator[bytes]:
    times = LineTimes(attempt)
    position = await asyncio.to_thread(_start, attempt.output, request.tail_lines)
    if request.since is not None:
        position = max(position, await asyncio.to_thread(_first_since, attempt.output, times, request.since))
    left = request.limit_bytes
    begins_line = True
    async for at, piece in _pieces(container, attempt, position, follow=request.follow):
        begins_line = begins_line or at != position  # the output in between has been removed
        position = at + len(piece)
        answer = times.stamp(piece, at, begins_line=begins_line) if request.timestamps else piece
        begins_line = piece.endswith(b"\n")
        yield answer[:left]
        if left is not None and (left := left - len(answer)) <= 0:
            return


async def _pieces(
    container: ContainerRunner, attempt: Attempt, position: int, *, follow: bool
) -> AsyncIterator[tuple[int, bytes]]:
    """The output from `position` on, with the position of each piece."""
    while True:
        # Checked before reading, so that everything that is written before the end is read.
        ended = container.is_over(attempt)
        position, piece = attempt.output.read(position, _PIECE)
        if piece:
            yield position, piece
            position += len(piece)
        elif ended or not follow:
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)


class LineTimes:
    """When the lines of an attempt's log were written, from the shim's records (`log_files`).

    Args:
        attempt: the attempt. If it has no records, all its lines get the time of its start.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._files = attempt.output
        self._started = attempt.started_at() or datetime.now(UTC)

    def stamp(self, piece: bytes, position: int, *, begins_line: bool) -> bytes:
        """Prefix each line that begins in a piece of the log with its time.

        Args:
            piece: the piece.
            position: position of the piece in the output. The whole piece must be in one file.
            begins_line: whether the piece begins at the start of a line.
        """
        stamped: list[bytes] = []
        with self._records(position) as records:
            for line in io.BytesIO(piece):
                stamped += [records.time_of(position) + b" ", line] if begins_line else [line]
                begins_line = True
                position += len(line)
        return b"".join(stamped)

    def first_since(self, since: datetime) -> int | None:
        """The position of the first piece that was written at a time or later; None if there is none."""
        for begin in self._files.begins():
            with self._records(begin) as records:
                if (position := records.first_since(int(since.timestamp() * 1e9))) is not None:
                    return position
        return None

    @contextlib.contextmanager
    def _records(self, position: int) -> "Iterator[_Records]":
        """Open the records of the file that contains a position."""
        begin = max((file_begin for file_begin in self._files.begins() if file_begin <= position), default=0)
        try:
            descriptor = os.open(self._files.times(begin), os.O_RDONLY)
        except FileNotFoundError:
            descriptor = os.open(os.devnull, os.O_RDONLY)
        try:
            yield _Records(descriptor, self._started)
        finally:
            os.close(descriptor)


class _Records:
    """An open file of times."""

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
        """When a byte of the log was written, as text. Must be called with ascending positions."""
        after = bisect.bisect_right(self._numbers, position, lo=self._last, key=self._begin)
        self._last = max(after - 1, 0)
        seconds, nanoseconds = divmod(self._time(self._last) if after else self._started, 10**9)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z".encode()

    def first_since(self, since: int) -> int | None:
        """The position of the first piece written then or later; None if there is none."""
        if not self._numbers:
            return 0 if self._started >= since else None
        number = bisect.bisect_left(self._numbers, since, key=self._time)
        return self._begin(number) if number < len(self._numbers) else None


def _first_since(output: LogFiles, times: LineTimes, since: datetime) -> int:
    """The position of the first line that was written at a time or later."""
    begins, end = (
        output.begins(),
        output.end(),
    )  # read before the records, because everything that is written meanwhile is newer
    position = times.first_since(since) if begins else 0
    if position is None:
        return end
    if not begins or position <= begins[0]:
        return position
    position -= 1  # a line begins at the position if the previous byte is a line end
    while True:
        position, piece = output.read(position, _PIECE)
        if (at := piece.find(b"\n")) >= 0 or not piece:
            return position + at + 1
        position += len(piece)


def _start(output: LogFiles, lines: int | None) -> int:
    """The position at which the last `lines` lines begin."""
    if lines is None:
        return 0
    begins, position = output.begins(), output.end()
    if lines == 0:
        return position
    left = lines
    first = True
    while begins and position > begins[0]:
        # A block does not cross a file boundary, so that one call reads all of it.
        begin = max(position - _PIECE, *(file_begin for file_begin in begins if file_begin < position))
        _, block = output.read(begin, position - begin)
        # The newline of the last line does not begin another line.
        at = len(block) - 1 if first and block.endswith(b"\n") else len(block)
        position, first = begin, False
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            left -= 1
            if left == 0:
                return position + at + 1
    return position
