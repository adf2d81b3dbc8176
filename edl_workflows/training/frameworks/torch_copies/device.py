"""Copies between the tensors of a PyTorch program and the host's memory, made by the device that holds the
tensors.

All that is specific to CUDA is in `CudaDevice`: memory is registered with ``cudaHostRegister``, and copies
are made on a stream of their own, so that the training's stream goes on. Copies to pageable memory reached
6 GB/s on an H100; to registered memory, 55 GB/s.
"""

import contextlib
import logging
import mmap
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch

from edl_workflows.training.checkpoints.copying import Copies, DoneCopies, Registrar

_PORTABLE = 1
"""``cudaHostRegisterPortable``: the memory is registered for all devices of the process."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""A tensor to write, and one of the same type and shape to read."""

log = logging.getLogger(__name__)


class CopyDevice(Registrar, Protocol):
    """The device that holds a model."""

    def mark(self) -> Any:
        """A mark after the work that this thread has given the device so far."""
        ...

    def copy(self, pairs: Iterable[Pair], after: Any = None) -> Copies:
        """Begin to copy tensors between the device and the host, beside other work. Pairs that are both on
        the host are copied before this returns.

        Args:
            pairs: what to copy. The tensors must stay valid until the copies are complete.
            after: a mark; the copies begin after the work before it. None: after the work that this thread
                has given the device so far.
        """
        ...


class CpuDevice:
    """The CPU, for models in the host's memory."""

    def mark(self) -> None:
        """None: work on the CPU is complete when it returns."""

    def register(self, _memory: mmap.mmap) -> Callable[[], object]:
        """Do nothing: the CPU reaches all memory."""
        return _do_nothing

    def copy(self, pairs: Iterable[Pair], after: Any = None) -> Copies:  # noqa: ARG002 - see `mark`
        """Copy."""
        for into, source in pairs:
            into.copy_(source)
        return DoneCopies()


class CudaDevice:
    """The NVIDIA GPUs that hold a model.

    Args:
        devices: each with its index. Tensors may also come to other GPUs later.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._streams = {device: torch.cuda.Stream(device) for device in devices}
        self._warned = False

    def mark(self) -> Mapping[torch.device, Any]:
        """An event on this thread's stream of each GPU."""
        return {device: torch.cuda.current_stream(device).record_event() for device in list(self._streams)}

    def register(self, memory: mmap.mmap) -> Callable[[], object]:
        """Register memory for all GPUs of the process. If CUDA refuses, warn once; copies then go through
        pageable memory.

        CUDA keeps the last error of each thread, and PyTorch would raise it at its next check there. So a
        thread that does nothing else registers.
        """
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        device = next(iter(self._streams))

        def register() -> int:
            with torch.cuda.device(device):
                return int(torch.cuda.cudart().cudaHostRegister(address, len(memory), _PORTABLE))

        def end_registration() -> None:
            with torch.cuda.device(device):  # else CUDA would use memory of the first GPU, too
                torch.cuda.cudart().cudaHostUnregister(address)

        with ThreadPoolExecutor(1, "register") as thread:
            code = thread.submit(register).result()
        if code == 0:
            return end_registration
        if not self._warned:
            self._warned = True
            log.warning(
                "cudaHostRegister refused %d MiB of shared memory (CUDA error %d): checkpoints are copied "
                "from the GPU through pageable memory, which is slower; do the machine and the pod's memory "
                "limit have room for twice the model's size?",
                len(memory) >> 20,
                code,
            )
        return _do_nothing

    def copy(self, pairs: Iterable[Pair], after: Mapping[torch.device, Any] | None = None) -> Copies:
        """Begin to copy, on a stream of each GPU for copies only."""
        mark = self.mark() if after is None else after
        used: set[torch.device] = set()
        try:
            for into, source in pairs:
                device = into.device if into.is_cuda else source.device
                if device.type != "cuda":
                    into.copy_(source)
                    continue
                if device not in used:
                    self._begin(device, mark.get(device))
                    used.add(device)
                # Leaving the stream alone would make the first GPU this thread's device, in a new thread.
                with torch.cuda.device(device), torch.cuda.stream(self._streams[device]):
                    into.copy_(source, non_blocking=True)
            return _CudaCopies({device: self._record(device) for device in used})
        except BaseException:
            for device in used:  # whoever handles the error may free or change the tensors
                with contextlib.suppress(RuntimeError):
                    self._streams[device].synchronize()
            raise

    def _begin(self, device: torch.device, event: Any) -> None:
        """Let copies of a GPU begin after an event; None: after the work that this thread has given it."""
        if device not in self._streams:
            self._streams.setdefault(device, torch.cuda.Stream(device))
        self._streams[device].wait_event(event or torch.cuda.current_stream(device).record_event())

    def _record(self, device: torch.device) -> Any:
        event = torch.cuda.Event(blocking=True)  # `wait` sleeps instead of using a core
        event.record(self._streams[device])
        return event


class _CudaCopies:
    """Copies that have begun on streams of their own; an event after the last copy of each."""

    def __init__(self, events: Mapping[torch.device, Any]) -> None:
        self._events = events

    def hold_back(self) -> None:
        for device, event in self._events.items():
            torch.cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        for event in self._events.values():
            event.synchronize()


def choose_device(tensors: Iterable[torch.Tensor]) -> CopyDevice:
    """The device that copies these tensors: the GPUs that hold any of them, else the CPU."""
    gpus = {tensor.device: None for tensor in tensors if tensor.is_cuda}
    return CudaDevice(gpus) if gpus else CpuDevice()


def _do_nothing() -> None:
    pass
