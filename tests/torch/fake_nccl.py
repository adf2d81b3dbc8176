"""A stand-in for PyTorch's NCCL group that behaves as NCCL does where it differs from Gloo: waiting does not
wait, an operation without its peers never completes, and an aborted one completes with any content."""

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

Reduce = Callable[[list[torch.Tensor]], torch.Tensor]


class FakeNccl:
    """A group of threads of one process.

    Attributes:
        made: all groups, in the order in which they were made.
        connects: what `eager_connect_single_device` waits for.
    """

    made: ClassVar[list["FakeNccl"]] = []
    connects = threading.Event()
    _sent: ClassVar[dict[tuple[str, int], dict[int, torch.Tensor]]] = defaultdict(dict)

    class Options(SimpleNamespace):
        """Options of a group."""

        def __init__(self) -> None:
            super().__init__(config=SimpleNamespace(blocking=True))

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        assert not options.config.blocking
        if rank == 0:
            store.set("id", uuid.uuid4().hex)
        self._id = store.get("id").decode()
        self._size = size
        self.rank = rank
        self.aborted = False
        self.shut = False
        self._works: list[FakeWork] = []
        FakeNccl.made.append(self)

    def eager_connect_single_device(self, _device: torch.device) -> None:
        """Connect; an abort ends it."""
        while not self.connects.wait(0.01):
            if self.aborted:
                raise RuntimeError("NCCL communicator was aborted")

    def allreduce(self, tensors: list[torch.Tensor], _options: Any) -> "FakeWork":
        """Sum."""
        return self._begin(tensors[0], lambda sent: torch.stack(sent).sum(0))

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> "FakeWork":
        """Send."""
        return self._begin(tensors[0], lambda sent: sent[options.rootRank])

    def shutdown(self) -> None:
        """Disconnect; nothing is under way."""
        self.shut = True

    def abort(self) -> None:
        """End all operations, whatever they have written."""
        self.aborted = True
        for work in self._works:
            work.abort()

    def _begin(self, tensor: torch.Tensor, reduce: Reduce) -> "FakeWork":
        sent = FakeNccl._sent[self._id, len(self._works)]
        sent[self.rank] = tensor.clone()
        work = FakeWork(tensor, lambda: [sent[rank] for rank in sorted(sent)], self._size, reduce)
        self._works.append(work)
        return work


class FakeWork:
    """An operation on a stream."""

    def __init__(
        self, tensor: torch.Tensor, sent: Callable[[], list[torch.Tensor]], size: int, reduce: Reduce
    ) -> None:
        self._tensor = tensor
        self._sent = sent
        self._size = size
        self._reduce = reduce
        self._completed = False

    def is_completed(self) -> bool:
        """Whether the stream is past it."""
        if not self._completed and len(sent := self._sent()) == self._size:
            self._tensor.copy_(self._reduce(sent))
            self._completed = True
        return self._completed

    def wait(self) -> None:
        """Returns at once, as the process does not wait for the stream."""

    def abort(self) -> None:
        """Complete with rubbish."""
        if not self.is_completed():
            self._tensor.fill_(77)
            self._completed = True
