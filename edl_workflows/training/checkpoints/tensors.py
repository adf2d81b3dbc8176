"""A model's state as one block of bytes, as copied to shared memory and written to storage.

The format is that of safetensors (https://github.com/huggingface/safetensors, "Format"): the length of a JSON
header in 8 bytes, the header with type, shape and offsets of each tensor, and the tensors' data. So any
framework's safetensors library, or `load`, can read a saved state. Code that only moves the bytes, such as
the agent, needs no tensor library.
"""

import json
import math
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.checkpoint_parts import WHOLE, Part
from edl_workflows.training.checkpoints.copying import Copies, CopyGuard, DoneCopies, Registrar
from edl_workflows.training.checkpoints.manifest import Layout, open_regular

Array = npt.NDArray[Any]

MAX_HEADER_BYTES = 100 * 2**20
"""Limit that the format sets."""
_METADATA = "__metadata__"
_LENGTH_BYTES = 8
_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""The format's names of numpy's types."""
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
_OF_ML_DTYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
"""Types that numpy lacks and that the package ``ml_dtypes`` adds."""


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of a tensor. In the block its values are little-endian, as the format requires, whatever
    the tensor's own byte order."""

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.dtype.newbyteorder("<"))

    @property
    def size(self) -> int:
        """Bytes."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class State:
    """A model's state between two steps, about to be copied.

    Attributes:
        step: global step.
        specs: type and shape of its tensors, by name.
        fill: writes the tensors' values into the given arrays, one for each of ``specs``. Called once. If it
            only begins to, it returns the copies that have begun.
        metadata: further text that a restore needs.
        layout: how the model cuts its variables, for the checkpoint's manifest; None if that does not matter.
        part: which part of the checkpoint this is, if several processes save the checkpoint together.
        guard: if given, ``fill`` may run in another thread, since the owner of the tensors waits for the
            guard before it changes them; None: the tensors may change as soon as training continues.
        registrar: the device that copies the tensors; None if the CPU does.
    """

    step: int
    specs: Mapping[str, TensorSpec]
    fill: Callable[[Mapping[str, Array]], Copies | None]
    metadata: Mapping[str, str] = field(default_factory=dict)
    layout: Layout | None = None
    part: Part = WHOLE
    guard: CopyGuard | None = None
    registrar: Registrar | None = None

    @classmethod
    def of(cls, step: int, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> Self:
        """A state made of arrays, which are read when the state is copied."""

        def fill(into: Mapping[str, Array]) -> None:
            for name, array in tensors.items():
                np.copyto(into[name], array)

        specs = {name: TensorSpec(array.dtype, array.shape) for name, array in tensors.items()}
        return cls(step, specs, fill, metadata or {})


@dataclass(frozen=True)
class Loaded:
    """A state that was read: read-only tensors by name, and the metadata.

    The tensors are views of the memory or file from which they were read; copy tensors that you keep.
    """

    tensors: Mapping[str, Array]
    metadata: Mapping[str, str]


class StateBlock:
    """The layout of a state in a block of bytes.

    Attributes:
        size: bytes of the block.

    Args:
        state: the state to copy.

    Raises:
        InvalidError: the format does not support a tensor's type, or a tensor has the reserved name of the
            metadata.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        # The widest types first, so that each tensor is aligned to its type's size, as readers require.
        self._order = sorted(state.specs, key=lambda name: (-state.specs[name].dtype.itemsize, name))
        self._header = self._make_header()
        self.size = len(self._header) + sum(spec.size for spec in state.specs.values())

    def write(self, into: memoryview) -> None:
        """Copy the state.

        Args:
            into: writable buffer of at least `size` bytes; no reference to it is kept.
        """
        self.begin(into).wait()

    def begin(self, into: memoryview) -> Copies:
        """Begin to copy the state.

        Args:
            into: writable buffer of at least `size` bytes, which stays valid until the copies are complete.
        """
        into[: len(self._header)] = self._header
        start, views = len(self._header), {}
        for name in self._order:
            spec = self._state.specs[name]
            flat = np.frombuffer(into, spec.dtype, math.prod(spec.shape), start)
            views[name] = flat.reshape(spec.shape)
            start += spec.size
        return self._state.fill(views) or DoneCopies()

    def _make_header(self) -> bytes:
        entries: dict[str, Any] = {_METADATA: dict(self._state.metadata)} if self._state.metadata else {}
        start = 0
        for name in self._order:
            spec = self._state.specs[name]
            if spec.dtype.name not in _NAMES or name == _METADATA:
                raise InvalidError(
                    f"tensor {name!r} of type {spec.dtype}: can't be saved; types are {', '.join(_NAMES)}, "
                    f"and the name {_METADATA} is taken"
                )
            end = start + spec.size
            shape = list(spec.shape)
            entries[name] = {
                "dtype": _NAMES[spec.dtype.name],
                "shape": shape,
                "data_offsets": [start, end],
            }
            start = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def save(folder: Path, state: State) -> None:
    """Write a state into a checkpoint's folder; for the argument `write` of `CheckpointStore.publish`.

    Raises:
        OSError: the storage failed.
    """
    write_state(folder / state.part.file, state)


def write_state(path: Path, state: State) -> None:
    """Write a state's file.

    Raises:
        OSError: the storage failed.
    """
    block = StateBlock(state)
    # Don't write into a mapping of the file: a full disk would kill the process instead of raising an error.
    with mmap.mmap(-1, block.size) as memory:
        with memoryview(memory) as view:
            block.write(view)
        with path.open("wb") as file:
            file.write(memory)


def load(path: Path) -> Loaded:
    """Read a state's file; its tensors are views of the file's pages.

    Raises:
        CheckpointError: the file is missing or incomplete.
        InvalidError: the file is complete, but ``ml_dtypes``, which its types need, is not installed here.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error}") from error
    return read_state(memoryview(memory), str(path))


def read_state(block: memoryview, where: str) -> Loaded:
    """The state in a block of bytes.

    Args:
        block: a block that `StateBlock.write` has written. The tensors are views of it.
        where: path or URI of the state, for errors.

    Raises:
        CheckpointError: the block does not contain a state, or is incomplete.
        InvalidError: the block is complete, but ``ml_dtypes``, which its types need, is not installed here.
    """
    length = int.from_bytes(block[:_LENGTH_BYTES], "little")
    if len(block) < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, len(block) - _LENGTH_BYTES):
        raise CheckpointError(f"{where}: torn: {len(block)} bytes hold no state")
    data = block[_LENGTH_BYTES + length :]
    try:
        entries = json.loads(bytes(block[_LENGTH_BYTES : _LENGTH_BYTES + length]))
        metadata = {str(key): str(value) for key, value in entries.pop(_METADATA, {}).items()}
        tensors = {name: _tensor(data, entry) for name, entry in entries.items()}
    except ImportError as error:
        # Not a CheckpointError: the master would consider an intact checkpoint damaged.
        raise InvalidError(
            f"{where}: has tensors of bfloat16 or 8-bit floating point, which numpy reads with ml_dtypes "
            f"({error}): pip install 'edl-workflows[numpy]'"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{where}: is no state of a model: {error!r}") from error
    return Loaded(tensors, metadata)


def _tensor(data: memoryview, entry: Mapping[str, Any]) -> Array:
    dtype, shape = _dtype(_TYPES[entry["dtype"]]), tuple(map(int, entry["shape"]))
    start, end = map(int, entry["data_offsets"])
    if min(shape, default=0) < 0 or not 0 <= start <= end <= len(data):
        raise ValueError(f"shape {shape} at {start} to {end} of {len(data)} bytes")
    if end - start != dtype.itemsize * math.prod(shape):
        raise ValueError(f"shape {shape} in {end - start} bytes")
    tensor = np.frombuffer(data[start:end], dtype).reshape(shape)
    tensor.flags.writeable = False
    return tensor


def _dtype(name: str) -> "np.dtype[Any]":
    if name in _OF_ML_DTYPES:
        import ml_dtypes  # noqa: F401 - its import makes the types known to numpy
    return np.dtype(name)
