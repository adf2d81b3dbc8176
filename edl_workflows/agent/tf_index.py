"""How the variables of a TensorFlow checkpoint are partitioned, read from its index.

TensorFlow offers types and whole shapes of a checkpoint's variables, but not where it cut them. That stands in the index,
a table of sorted keys in LevelDB's format
(https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/io/table_format.txt), with a
``BundleEntryProto`` for each variable.
"""

from collections.abc import Iterator
from pathlib import Path

from tensorflow.core.protobuf import tensor_bundle_pb2

from edl_workflows.agent.layout import VariableLayout
from edl_workflows.exceptions import CheckpointError

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_VARINT_LIMIT = 10


def read_layout(index: Path) -> dict[str, VariableLayout]:
    """The variables of a checkpoint, by name.

    Args:
        index: the file ``<prefix>.index``.

    Raises:
        CheckpointError: it can't be read, or is no index.
    """
    try:
        content = index.read_bytes()
        return {
            name.decode(): _layout(entry)
            for name, entry in _entries(content)
            if name and not name.startswith(b"\0")  # the header, and the slices' own entries
        }
    except (OSError, ValueError, IndexError) as error:
        raise CheckpointError(f"{index}: is no index of a TensorFlow checkpoint: {error}") from error


def _layout(entry: bytes) -> VariableLayout:
    message = tensor_bundle_pb2.BundleEntryProto.FromString(entry)
    shape = [dimension.size for dimension in message.shape.dim]
    # Where a slice spans a whole dimension its extent says nothing: start 0, and no length.
    starts = [{part.extent[axis].start for part in message.slices} for axis in range(len(shape))]
    return VariableLayout(shape=shape, parts=[max(1, len(found)) for found in starts])


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError("its last bytes are not those of a table")
    _, at = _handle(footer, 0)  # of the block of metadata
    index, _ = _handle(footer, at)
    for _, handle in _block(content, *index):
        yield from _block(content, *_handle(handle, 0)[0])


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if content[offset + size] != 0:
        raise ValueError("it is compressed")
    block = content[offset : offset + size]
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        fresh, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + fresh]
        at += fresh
        yield key, block[at : at + length]
        at += length


def _handle(text: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _varint(text, at)
    size, at = _varint(text, at)
    return (offset, size), at


def _varint(text: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_LIMIT):
        byte = text[at + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise ValueError("a number has no end")
