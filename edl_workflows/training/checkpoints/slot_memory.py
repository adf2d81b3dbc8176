"""Shared memory for the copies of a model: allocated, mapped, and registered with the device that copies.

All of that takes seconds for a model of gigabytes, so it is done in another thread while training goes on,
before the first copy.
"""

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints.copying import Registrar

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is created in it
SLOTS = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` of Linux 5.14; Python has no name for it."""
_PIECE = 4 * 2**20
"""Bytes that are populated at once. Python's lock is held meanwhile, and the main thread waits for it."""


class NoMemoryError(CheckpointError):
    """Shared memory has no room for a copy."""


class _Mapped(NamedTuple):
    """The memory of a slot. `end_registration` is None if it was not registered."""

    memory: mmap.mmap
    end_registration: Callable[[], object] | None = None


class SlotMemory:
    """The mapped memory of slots. Mappings are kept, since new pages take time. May be used by several
    threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: dict[Path, _Mapped] = {}
        self._registers = False
        self._released = False

    def map(self, slot: Path, size: int, registrar: Registrar | None) -> mmap.mmap:
        """The memory of a slot, at least `size` bytes. After `release` it is not registered any more.

        Args:
            slot: file of the slot. No other thread may use its memory meanwhile, since a mapping that is too
                small is replaced.
            size: bytes.
            registrar: the device that copies to the memory; None if the CPU copies.

        Raises:
            NoMemoryError: there is not enough shared memory.
        """
        if registrar is not None:
            self._registers = True  # before `_released` is read: see `release`
        with self._lock:
            mapped = self._mapped.get(slot)
            if mapped is None or len(mapped.memory) < size:
                memory = _map(slot, max(1, size))
                self._end_registration(slot)
                mapped = _Mapped(memory)
            if registrar is not None and mapped.end_registration is None and not self._released:
                mapped = _Mapped(mapped.memory, registrar.register(mapped.memory))
            self._mapped[slot] = mapped
            return mapped.memory

    def release(self, seconds: float) -> None:
        """End all registrations, because the process ends. If there never was any, this returns at once.

        Args:
            seconds: longest wait for a thread that is mapping memory. If it takes longer, the operating
                system ends the registrations with the process.
        """
        self._released = True  # before `_registers` is read: a thread that registers has set it earlier
        if not self._registers or not self._lock.acquire(timeout=seconds):
            return
        try:
            for slot in list(self._mapped):
                self._end_registration(slot)
        finally:
            self._lock.release()

    def _end_registration(self, slot: Path) -> None:
        mapped = self._mapped.pop(slot, None)
        if mapped is not None and mapped.end_registration is not None:
            mapped.end_registration()


def _map(slot: Path, size: int) -> mmap.mmap:
    with slot.open("ab+") as file:
        try:
            # Allocate the pages: a write to a missing page would kill the process by SIGBUS.
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise NoMemoryError(
                f"{slot}: shared memory has no {size >> 20} MiB left for a copy of the model: give the "
                "pod an "
                f"emptyDir of medium Memory at {SHARED_MEMORY} with {SLOTS} times the model's size: "
                f"{error}"
            ) from error
    with slot.open("rb+") as file:
        memory = mmap.mmap(file.fileno(), size)
    _populate(memory)
    return memory


def _populate(memory: mmap.mmap) -> None:
    """Enter all pages into the page table, piece by piece. MAP_POPULATE would do it in one call, during which
    Python's lock is held: training stood still for as long."""
    try:
        for start in range(0, len(memory), _PIECE):
            memory.madvise(_POPULATE_WRITE, start, min(_PIECE, len(memory) - start))
            time.sleep(0)  # lets a thread that waits for Python's lock run
    except OSError:  # an older kernel: the first copy enters them
        return
