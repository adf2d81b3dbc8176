"""Copying a model's state to memory while training goes on: what the owner of the tensors and the thread that
copies them agree on.

A GPU copies by itself: a program only begins the copies, and later waits for them. `Copies` stands for copies
that have begun. A GPU copies at the speed of its bus only to memory that is registered with it (`Registrar`).
"""

import mmap
import threading
from collections.abc import Callable
from typing import Protocol


class Copies(Protocol):
    """Copies that have begun."""

    def hold_back(self) -> None:
        """Let the work that this thread gives the device from now on begin after the copies. This need not
        wait for the copies."""
        ...

    def wait(self) -> None:
        """Wait until the copies are complete."""
        ...


class DoneCopies:
    """Copies that are complete."""

    def hold_back(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Do nothing."""


class Registrar(Protocol):
    """The device that copies to memory."""

    def register(self, memory: mmap.mmap) -> Callable[[], object]:
        """Register memory, so that the device copies it fast and without help of the CPU. Memory that can't
        be registered is copied more slowly.

        Returns:
            A function that ends the registration. Call it before the memory is unmapped.
        """
        ...


class CopyGuard:
    """Keeps the owner of tensors from changing them while they are copied."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self._copies: Copies = DoneCopies()

    def begin(self) -> None:
        """Mark that another thread is about to begin copies."""
        self._copies = DoneCopies()
        self._free.clear()

    def begun(self, copies: Copies) -> None:
        """Mark that the copies have begun. From now on `wait` only holds back the work that comes after
        it."""
        self._copies = copies
        self._free.set()

    def end(self) -> None:
        """Mark that the copies are complete, or that there are none."""
        self._copies = DoneCopies()
        self._free.set()

    def wait(self) -> None:
        """Wait until nothing that follows can change what is being copied. The owner calls it before it
        changes a tensor."""
        self._free.wait()
        self._copies.hold_back()
