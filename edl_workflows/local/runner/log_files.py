"""A container's output on disk, in files of bounded size. The oldest are removed. The limits are kubelet's
defaults.

The file ``log`` contains the beginning of the output; ``log.<position>`` continues at that position. Files
are only appended to and never renamed, so a position stays valid for a reader while the shim starts the next
file.

Each file has a ``<file>.times`` with one record for each piece of output that the shim read. A record has 16
bytes: the position of the piece in the whole output, and when it was read, in nanoseconds since the epoch.
Both are little-endian and never decrease. A record is written before its piece.

The module uses only the standard library, because `shim` loads it.
"""

from __future__ import annotations  # the types cost nothing at run time

import contextlib
import os
import time
from bisect import bisect_right

MAX_BYTES = 10 * 1024 * 1024
"""Size at which the next file is started: the default of kubelet's ``containerLogMaxSize``."""
MAX_FILES = 5
"""Number of files that are kept: the default of kubelet's ``containerLogMaxFiles``."""
LINE_BYTES = 1024 * 1024
"""How much a file may exceed this size in order to end with a complete line."""
RECORD_BYTES = 16
_PIECE = 64 * 1024


class LogFiles:
    """Reads the output of one start of a container.

    Args:
        log: path of the first file.
    """

    def __init__(self, log: str) -> None:
        self._folder, self._name = os.path.split(log)

    def begins(self) -> list[int]:
        """The positions at which the existing files begin, in ascending order."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        suffixes = [
            name.removeprefix(f"{self._name}.") for name in names if name.startswith(f"{self._name}.")
        ]
        later = [int(suffix) for suffix in suffixes if suffix.isdigit()]
        return sorted([*later, 0] if self._name in names else later)

    def path(self, begin: int) -> str:
        """The file that begins at a position."""
        return os.path.join(self._folder, f"{self._name}.{begin}" if begin else self._name)

    def times(self, begin: int) -> str:
        """The file with the times of the file that begins at a position."""
        return f"{self.path(begin)}.times"

    def end(self) -> int:
        """The position at which the output ends now."""
        begins = self.begins()
        return begins[-1] + os.path.getsize(self.path(begins[-1])) if begins else 0

    def read(self, position: int, size: int) -> tuple[int, bytes]:
        """Read at most `size` bytes of one file, from a position or from the oldest byte that still exists.
        Returns their position and the bytes."""
        while begins := self.begins():
            begin = begins[max(bisect_right(begins, position) - 1, 0)]
            position = max(position, begin)
            try:
                descriptor = os.open(self.path(begin), os.O_RDONLY)
            except FileNotFoundError:
                continue  # the file has just been removed
            try:
                return position, os.pread(descriptor, size, position - begin)
            finally:
                os.close(descriptor)
        return position, b""

    def tail(self, size: int) -> bytes:
        """The last `size` bytes."""
        position, tail = max(self.end() - size, 0), b""
        while piece := self.read(position, size)[1]:
            tail, position = tail + piece, position + len(piece)
        return tail[-size:]


def log_output(output: int, log: str) -> None:
    """Write the output from a pipe to log files until its other end is closed.

    Args:
        output: file descriptor of the pipe.
        log: path of the first file.
    """
    keeper, last = _Keeper(LogFiles(log)), 0
    while piece := os.read(output, _PIECE):
        last = max(last, time.time_ns())
        with contextlib.suppress(OSError):  # a full disk loses output, but the container continues
            keeper.keep(piece, last)
    keeper.close()


class _Keeper:
    """Appends to the newest file and starts another one when it is full."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._begin = (files.begins() or [0])[-1]
        self._size = self._times_size = 0
        self._ends_line = True
        self._open: list[int] = []

    def keep(self, piece: bytes, nanoseconds: int) -> None:
        """Append a piece of output and the time at which it was read."""
        if not self._open or self._is_full():
            self._go_on()
        text, times = self._open
        at = self._begin + self._size
        self._times_size += os.write(times, at.to_bytes(8, "little") + nanoseconds.to_bytes(8, "little"))
        while piece:
            written = os.write(text, piece)
            self._size += written
            self._ends_line = piece[:written].endswith(b"\n")
            piece = piece[written:]

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _is_full(self) -> bool:
        enough = MAX_BYTES if self._ends_line else MAX_BYTES + LINE_BYTES
        return self._size >= enough or self._times_size >= MAX_BYTES

    def _go_on(self) -> None:
        """Open the newest file, or a new one if that is already open and full. First remove the oldest
        files."""
        if self._open:
            for begin in self._files.begins()[: 1 - MAX_FILES]:
                os.unlink(self._files.path(begin))
                os.unlink(self._files.times(begin))
        begin = self._begin + self._size if self._open else self._begin
        opened = [_open_to_append(self._files.path(begin))]
        try:
            opened.append(_open_to_append(self._files.times(begin)))
        except OSError:
            os.close(opened[0])
            raise
        self.close()
        self._open, self._begin, self._ends_line = opened, begin, True
        self._size, self._times_size = (os.fstat(descriptor).st_size for descriptor in opened)


def _open_to_append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
