"""How the variables of a ``tf.compat.v1`` graph are cut into parts. When training begins, their size decides;
afterwards the parts are those recorded in the checkpoints. The number of parameter servers determines only
the placement of the parts.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import Layout, VariableLayout

VARIABLES = tf.compat.v1.GraphKeys.GLOBAL_VARIABLES
LOCAL = tf.compat.v1.GraphKeys.LOCAL_VARIABLES
SAVEABLES = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
_TABLES = ("MutableHashTable", "MutableHashTableOfTensors", "MutableDenseHashTable")
_STATEFUL = {"VarHandleOp", "VariableV2", "Variable", *_TABLES, *(f"{name}V2" for name in _TABLES)}

PARTS = 16
"""Maximum number of parts of a variable, unless there are more servers."""
PART_BYTES = 256 * 2**10
"""Minimum size of a part, since many parts slow a step down."""

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_VARINT_LIMIT = 10

Partitioner = Callable[[Any, Any], list[int]]


def partition_by_size(most: int) -> Partitioner:
    """A partitioner that cuts a variable along its first axis into at most `most` parts of at least
    `PART_BYTES`."""

    def cut(shape: Any, dtype: Any) -> list[int]:
        rows = shape.as_list()[0]
        parts = min(rows, most, math.ceil(shape.num_elements() * dtype.size / PART_BYTES))
        return [max(1, parts), *[1] * (len(shape) - 1)]

    return cut


def partition_as(layout: Layout) -> Callable[..., Any]:
    """A custom getter that cuts each variable as a checkpoint does, whatever partitioner the program sets."""

    def get(getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        saved = layout.get(name)
        if saved is not None and (kwargs.get("partitioner") is not None or math.prod(saved.parts) > 1):
            kwargs["partitioner"] = lambda **_: list(saved.parts)
        return getter(name, *args, **kwargs)

    return get


def find_layout(store: CheckpointStore) -> Layout | None:
    """How the newest checkpoint cuts its variables; None if there is no checkpoint, or if it does not record
    that.

    All checkpoints of a store have the same parts, since training that continues from a checkpoint keeps
    them.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    newest = store.latest()
    if newest is None:
        return None
    manifest, ref = newest
    return (
        manifest.variables if manifest.variables is not None else _layout_in_files(store.verify(ref), store)
    )


def layout_of_checkpoint(ref: CheckpointRef, store: CheckpointStore) -> Layout | None:
    """How a complete checkpoint cuts its variables; None if it does not record that.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    recorded = store.manifest(ref).variables
    return recorded if recorded is not None else _layout_in_files(ref, store)


def _layout_in_files(ref: CheckpointRef, store: CheckpointStore) -> Layout | None:
    """Read the layout from TensorFlow's own files. For checkpoints of earlier versions of this library, whose
    manifest does not contain it."""
    index = next(store.local(ref).glob("*.index"), None)
    return None if index is None else read_layout(index)


def layout_of_graph(graph: Any) -> dict[str, VariableLayout]:
    """How a graph cuts the variables that it saves."""
    shapes: dict[str, list[int]] = {}
    starts: dict[str, list[set[int]]] = {}
    layout = {
        spec.name: VariableLayout() for saveable in graph.get_collection(SAVEABLES) for spec in saveable.specs
    }
    for variable in graph.get_collection(VARIABLES):
        part = variable._get_save_slice_info()  # noqa: SLF001 - as TensorFlow's own Saver does
        if part is not None:
            shapes[part.full_name] = list(part.full_shape)
            axis_starts = starts.setdefault(part.full_name, [set() for _ in part.full_shape])
            for axis, start in enumerate(part.var_offset):
                axis_starts[axis].add(start)
        elif variable.shape.is_fully_defined():
            shape = variable.shape.as_list()
            layout[variable.op.name] = VariableLayout(shape=shape, parts=[1] * len(shape))
        else:
            layout[variable.op.name] = VariableLayout()
    cut = {name: VariableLayout(shape=shapes[name], parts=[len(s) for s in starts[name]]) for name in shapes}
    return {**layout, **cut}


def unsaved_state(graph: Any, *, in_two_stages: bool) -> str:
    """Describe state of a model that checkpoints don't contain, so that it would be lost with the servers;
    "" if everything is saved.

    Args:
        graph: graph of the model.
        in_two_stages: whether checkpoints are saved in two stages, which save variables but no tables.
    """
    kept = {v.op.name for collection in (VARIABLES, LOCAL, "edl") for v in graph.get_collection(collection)}
    if not in_two_stages:
        tables = [
            getattr(saveable.op, "resource_handle", None) for saveable in graph.get_collection(SAVEABLES)
        ]
        kept |= {handle.op.name for handle in tables if handle is not None}
    for operation in graph.get_operations():
        if operation.type in _STATEFUL and operation.name not in kept:
            hint = "; with async_save only variables are saved" if "Table" in operation.type else ""
            return (
                f"{operation.type} {operation.name} is not saved with the checkpoints, and would be "
                f"lost{hint}"
            )
    return ""


def read_layout(index: Path) -> dict[str, VariableLayout]:
    """The variables of a TensorFlow checkpoint and how they are cut, by name.

    TensorFlow's API gives types and whole shapes, but not the parts. These are in the index, a table of
    sorted keys in LevelDB's format
    (https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/io/table_format.txt), with a
    ``BundleEntryProto`` for each variable.

    Args:
        index: the file ``<prefix>.index``.

    Raises:
        CheckpointError: it can't be read, or is not an index.
    """
    try:
        content = index.read_bytes()
        return {
            name.decode(): _layout(entry)
            for name, entry in _entries(content)
            if name and not name.startswith(b"\0")  # the header, and the slices' own entries
        }
    except (OSError, ValueError, IndexError) as error:
        raise CheckpointError(f"{index}: is not the index of a TensorFlow checkpoint: {error}") from error


def _layout(entry: bytes) -> VariableLayout:
    message = tensor_bundle_pb2.BundleEntryProto.FromString(entry)
    shape = [dimension.size for dimension in message.shape.dim]
    # A slice that spans a whole dimension has an empty extent: start 0, and no length.
    starts = [{part.extent[axis].start for part in message.slices} for axis in range(len(shape))]
    return VariableLayout(shape=shape, parts=[max(1, len(axis_starts)) for axis_starts in starts])


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError("its footer is not that of a table")
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
    raise ValueError("a varint is not terminated")
