"""The output of containers for ``pods/log``: read from the attempts' files, followed until the container ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.pods import LogRequest
from edl_workflows.local.runner.containers import ContainerRunner

_PIECE = 64 * 1024
_POLL_SECONDS = 0.1


async def read(request: LogRequest, container: ContainerRunner | None) -> AsyncIterator[bytes]:
    """The wanted part of a container's output.

    Raises:
        ApiError: 400, it has not started, or times are asked for, which are not recorded.
    """
    if request.timestamps or request.since_seconds is not None:
        raise errors.bad_request(
            "the embedded cluster records no time for each line: leave out timestamps and since"
        )
    attempt = container.attempt_of(previous=request.previous) if container else None
    if container is None or attempt is None:
        what = f'container "{request.container}" in pod "{request.pod}"'
        if request.previous:
            raise errors.bad_request(f"previous terminated {what} not found")
        raise errors.bad_request(f"{what} is waiting to start: ContainerCreating")
    position = await asyncio.to_thread(_start, attempt.log, request.tail_lines)
    left = request.limit_bytes
    while left is None or left > 0:
        # Asked before reading, so that what is written before the end is read after it.
        ended = attempt.ended() is not None
        piece = _read(attempt.log, position, _PIECE if left is None else min(left, _PIECE))
        if piece:
            position += len(piece)
            left = None if left is None else left - len(piece)
            yield piece
        elif ended or not request.follow:
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)


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
