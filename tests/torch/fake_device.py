"""A stand-in for a GPU that copies by itself: copies that have begun read the tensors later."""

import mmap
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from edl_workflows.training.frameworks.torch_copies.device import Pair


class FakeDevice:
    """A device that makes its copies as late as it may: when work that comes after them is given to it, or
    when a test lets it.

    Args:
        lazy: whether waiting for copies lets it make them.

    Attributes:
        may_copy: whether the copies may be made now.
        begun: copies that have begun.
        registered: whether each memory that was registered still is.
    """

    def __init__(self, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self.may_copy = threading.Event()
        self.begun: list[FakeCopies] = []
        self.registered: list[bool] = []

    def mark(self) -> None:
        """There is no work before."""

    def register(self, memory: mmap.mmap) -> Callable[[], object]:
        """Note it. The registration ends only when no copy to or from the memory is pending."""
        self.registered.append(True)
        index = len(self.registered) - 1
        start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        addresses = range(start, start + len(memory))

        def end_registration() -> None:
            pending = [copies for copies in self.begun if not copies.done.is_set()]
            assert not any(copies.uses(addresses) for copies in pending), "the device still copies"
            self.registered[index] = False

        return end_registration

    def copy(self, pairs: Iterable[Pair], after: Any = None) -> "FakeCopies":
        """Begin."""
        assert after is None
        self.begun.append(
            FakeCopies(list(pairs), threading.Event() if self.lazy else self.may_copy, self.lazy)
        )
        return self.begun[-1]


class FakeCopies:
    """Copies on a stream of their own."""

    def __init__(self, pairs: list[Pair], may_copy: threading.Event, lazy: bool) -> None:
        self._pairs = pairs
        self._addresses = [tensor.data_ptr() for pair in pairs for tensor in pair]
        self._may_copy = may_copy
        self._lazy = lazy
        self.done = threading.Event()
        threading.Thread(target=self._run, name="fake-copies", daemon=True).start()

    def uses(self, addresses: range) -> bool:
        """Whether they read or write memory at these addresses."""
        return any(address in addresses for address in self._addresses)

    def hold_back(self) -> None:
        """The stream of the CPU is this thread, so what comes after begins when this returns."""
        self._may_copy.set()
        self.wait()

    def wait(self) -> None:
        """Until they are made."""
        if self._lazy:
            self._may_copy.set()
        assert self.done.wait(240), "nobody lets the device copy"

    def _run(self) -> None:
        if self._may_copy.wait(240):
            while self._pairs:
                into, source = self._pairs.pop(0)
                into.copy_(source)
            del into, source
            self.done.set()
