"""Moves a PyTorch program's state to its devices: from checkpoints, and from another member of the group.

Values of a checkpoint go from the pages of a file through registered memory to the device, in several
threads. The state of another member goes from device to device, and is checked on the device, so that neither
the sender nor the receiver copies it to the host.
"""

import itertools
import json
import mmap
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from edl_workflows.training.checkpoints.copying import Copies, DoneCopies
from edl_workflows.training.checkpoints.tensors import Array
from edl_workflows.training.collective.gloo_group import GlooGroup
from edl_workflows.training.collective.regrouping import DamagedStateError
from edl_workflows.training.frameworks.torch_copies.device import CopyDevice, CpuDevice
from edl_workflows.training.frameworks.torch_state import (
    SplitState,
    Tensors,
    as_tensor,
    as_tensor_type,
    copy_to_host,
    find_type,
    name_type,
)

_PIECE = 8 * 2**20
"""Bytes that a thread copies at once."""
_MAX_THREADS = 8
_REORDERED = 512 * 2**20
"""Bytes of tensors whose values are not in order in memory, which are copied once more at a time."""
_CHECKED = 2**22
"""Words of a tensor that are multiplied with weights at once."""
_FACTOR = 0x2545F4914F6CDD1D
"""An odd number, so that no bit of the sum before is lost."""
_WEIGHTS: dict[torch.device, torch.Tensor] = {}
_CPU = torch.device("cpu")


Homes = Callable[[str, tuple[int, ...]], torch.Tensor | None]
"""Returns the tensor whose device and order in memory a tensor should have, given its name and shape; None:
the tensor belongs on the CPU."""


def restore_tensors(device: CopyDevice, arrays: Mapping[str, Array], homes: Homes) -> Tensors:
    """The tensors of a checkpoint, on the devices to which they belong; on the CPU if these have too little
    room.

    Args:
        device: the device that holds the model.
        arrays: the values.
        homes: see `Homes`.
    """
    if isinstance(device, CpuDevice):
        return copy_to_host(arrays)
    found = {name: homes(name, array.shape) for name, array in arrays.items()}
    try:
        tensors = {
            name: torch.empty_like(home, dtype=as_tensor_type(arrays[name].dtype))
            for name, home in found.items()
            if home is not None
        }
        upload(device, [(tensor, arrays[name]) for name, tensor in tensors.items()])
    except torch.OutOfMemoryError:
        tensors = {}
    return copy_to_host({name: array for name, array in arrays.items() if name not in tensors}) | tensors


def upload(device: CopyDevice, pairs: Sequence[tuple[torch.Tensor, Array]]) -> None:
    """Write arrays, such as those of a checkpoint's file, into tensors on a device; returns when all are
    written.

    Args:
        device: the device that holds the tensors.
        pairs: a tensor, and an array of the corresponding type and the same shape.
    """
    if isinstance(device, CpuDevice):
        for tensor, array in pairs:
            tensor.copy_(as_tensor(np.array(array, order="C"), tensor.dtype))
        return
    count = sum(-(-array.nbytes // _PIECE) for _, array in pairs)
    with _Upload(device, min(_MAX_THREADS, os.cpu_count() or 1, max(1, count))) as threads:
        for batch in _batches(pairs):
            _upload_batch(threads, batch)


def _upload_batch(threads: "_Upload", pairs: Sequence[tuple[torch.Tensor, Array]]) -> None:
    dense = [_dense_like(tensor) for tensor, _ in pairs]
    threads.copy(_cut([(into, array) for into, (_, array) in zip(dense, pairs, strict=True)]))
    for into, (tensor, _) in zip(dense, pairs, strict=True):
        if into is not tensor:
            tensor.copy_(into)


def _batches(pairs: Sequence[tuple[torch.Tensor, Array]]) -> Iterator[list[tuple[torch.Tensor, Array]]]:
    """The pairs, in batches that need at most `_REORDERED` bytes for copies of tensors or arrays whose values
    are not in order; a larger pair is a batch."""
    batch: list[tuple[torch.Tensor, Array]] = []
    size = 0
    for tensor, array in pairs:
        in_order = tensor.is_contiguous() and array.flags.c_contiguous
        copied = 0 if in_order else array.nbytes
        if batch and copied and size + copied > _REORDERED:
            yield batch
            batch, size = [], 0
        batch.append((tensor, array))
        size += copied
    if batch:
        yield batch


def _dense_like(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its values are in order in memory, else another one."""
    if tensor.is_contiguous():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _cut(pairs: Sequence[tuple[torch.Tensor, Array]]) -> list[tuple[torch.Tensor, Array]]:
    """The bytes of tensors and arrays, in pieces."""
    pieces: list[tuple[torch.Tensor, Array]] = []
    for tensor, array in pairs:
        into = tensor.detach().reshape(-1).view(torch.uint8)
        source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        starts = range(0, into.numel(), _PIECE)
        pieces += [(into[start : start + _PIECE], source[start : start + _PIECE]) for start in starts]
    return pieces


class _Upload:
    """Threads that copy pieces to registered memory, each with two places in it: while the device reads one,
    the thread fills the other. The memory is registered within a ``with`` block."""

    def __init__(self, device: CopyDevice, threads: int) -> None:
        self._device = device
        self._threads = threads
        self._lock = threading.Lock()
        self._mark: Any = None
        self._pieces: Iterator[tuple[torch.Tensor, Array]] = iter(())

    def __enter__(self) -> Self:
        self._memory = mmap.mmap(-1, self._threads * 2 * _PIECE)
        self._end_registration = self._device.register(self._memory)
        return self

    def __exit__(self, *_error: object) -> None:
        self._end_registration()

    def copy(self, pieces: Iterable[tuple[torch.Tensor, Array]]) -> None:
        """Copy pieces, after the work that this thread has given the device; returns when all are copied."""
        self._mark, self._pieces = self._device.mark(), iter(pieces)
        places = np.frombuffer(self._memory, np.uint8).reshape(self._threads, 2, _PIECE)
        with ThreadPoolExecutor(self._threads, "upload") as threads:
            for copied in [threads.submit(self._copy_pieces, place) for place in places]:
                copied.result()
        self._pieces = iter(())  # the tensors and arrays of this batch can be freed

    def _copy_pieces(self, places: Array) -> None:
        under_way: list[Copies] = [DoneCopies(), DoneCopies()]
        try:
            for turn, (into, source) in zip(itertools.cycle((0, 1)), self._take(), strict=False):
                under_way[turn].wait()
                place = places[turn, : source.size]
                np.copyto(place, source)
                under_way[turn] = self._device.copy([(into, torch.from_numpy(place))], self._mark)
        finally:
            for copies in under_way:
                copies.wait()

    def _take(self) -> Iterator[tuple[torch.Tensor, Array]]:
        while True:
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            yield piece


class Sent(NamedTuple):
    """What a member gets from another one.

    Attributes:
        numbers: the other's numbers.
        state: the other's state, with plain tensors; None if this member keeps its own.
    """

    numbers: list[int]
    state: SplitState | None


def broadcast_state(
    group: GlooGroup, numbers: Sequence[int], state: SplitState, root: int, *, load: bool
) -> Sent:
    """Broadcast numbers and a state to all members of a group.

    Args:
        group: the group.
        numbers: this member's numbers.
        state: this member's state, with plain tensors.
        root: the member that sends.
        load: whether this member needs the state, if it is not `root`.

    Raises:
        DamagedStateError: what arrived is not what `root` sent.
        UnavailableError: the group is broken.
    """
    described = json.dumps([list(numbers), state.skeleton, _describe(state.tensors)]).encode()
    content = group.broadcast_bytes(described, root)
    keep = load and group.rank != root
    try:
        first_numbers, skeleton, descriptions = json.loads(content)
        expected = [
            _Expected(name, find_type(dtype), shape, home) for name, dtype, shape, home in descriptions
        ]
        room = _make_room(expected, group.device) if keep else {}
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise DamagedStateError(
            f"what rank {root} says of its state can't be read: {error!r}; do all members run the same "
            "version of edl-workflows?"
        ) from error
    checksum = Checksum(group.device)
    for tensor in expected:
        if group.rank == root:
            into = state.tensors[tensor.name]
        else:
            into = room[tensor.name] if keep else tensor.make(group.device)
        arrived = group.broadcast(into.to(group.device), root)
        checksum.add(arrived)
        if keep:
            room[tensor.name] = arrived.to(into.device)
    sums = group.gather(checksum.value())
    if load and sums[group.rank] != sums[root]:
        raise DamagedStateError(f"the state of rank {root} arrived damaged: its checksum differs")
    return Sent([int(number) for number in first_numbers], SplitState(skeleton, room) if keep else None)


class _Expected(NamedTuple):
    """A tensor that another member describes. `home` is the type of the device on which that one has it."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    home: str

    def make(self, device: torch.device) -> torch.Tensor:
        """A tensor without values."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _describe(tensors: Tensors) -> list[tuple[str, str, list[int], str]]:
    """The tensors, for JSON; see `_Expected`."""
    return [
        (name, name_type(tensor.dtype), list(tensor.shape), tensor.device.type)
        for name, tensor in tensors.items()
    ]


def _make_room(expected: Sequence[_Expected], device: torch.device) -> Tensors:
    """Tensors without values: on the group's device if the sender has them on one, and there is room for all;
    else on the CPU."""
    try:
        return {tensor.name: tensor.make(_CPU if tensor.home == "cpu" else device) for tensor in expected}
    except torch.OutOfMemoryError:
        return {tensor.name: tensor.make(_CPU) for tensor in expected}


class Checksum:
    """A checksum of tensors on a device, in their order.

    On the CPU it is a CRC-32. On a GPU, the 32-bit words are multiplied with odd weights, which differ within
    a piece, and added up; so the sum differs if one word does, or if words have changed places.

    Args:
        device: the device of all tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._crc = 0
        self._sum = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, tensor: torch.Tensor) -> None:
        """Go on with a tensor; does not wait for a GPU."""
        content = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if self._device.type == "cpu":
            self._crc = zlib.crc32(content.numpy().data, self._crc)
        else:
            self._sum = add_weighted(self._sum, content)

    def value(self) -> int:
        """The checksum; waits for the device."""
        return self._crc if self._device.type == "cpu" else int(self._sum.item())


def add_weighted(total: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    """A checksum that continues `total`, of bytes on the same device; see `Checksum`."""
    weights = _weights(content.device)
    whole = content.numel() // 4 * 4
    rest = torch.zeros(4, dtype=torch.uint8, device=content.device)
    rest[: content.numel() - whole] = content[whole:]
    head = content[:whole]
    words = (head if head.storage_offset() % 4 == 0 else head.clone()).view(torch.int32)
    for piece in (*words.split(_CHECKED), rest.view(torch.int32)):
        total = total * _FACTOR + (piece.to(torch.int64) * weights[: piece.numel()]).sum()
    return total * _FACTOR + content.numel()


def _weights(device: torch.device) -> torch.Tensor:
    """The same random odd numbers on every device."""
    if device not in _WEIGHTS:
        source = torch.Generator().manual_seed(1)
        drawn = torch.randint(-(2**62), 2**62, (_CHECKED,), generator=source, dtype=torch.int64)
        _WEIGHTS[device] = (2 * drawn + 1).to(device)
    return _WEIGHTS[device]
