"""How the variables of a ``tf.compat.v1`` graph and of a checkpoint are cut into parts. When training begins,
their size decides (`tf_partitions`); afterwards the parts are those recorded in the checkpoints. The number
of parameter servers determines only the placement of the parts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import Layout, VariableLayout
from edl_workflows.training.checkpoints.tensors import Array
from edl_workflows.training.frameworks.tf1.tf_partitions import Partitions

VARIABLES = tf.compat.v1.GraphKeys.GLOBAL_VARIABLES
LOCAL = tf.compat.v1.GraphKeys.LOCAL_VARIABLES
SAVEABLES = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
_TABLES = ("MutableHashTable", "MutableHashTableOfTensors", "MutableDenseHashTable")
_STATEFUL = {"VarHandleOp", "VariableV2", "Variable", *_TABLES, *(f"{name}V2" for name in _TABLES)}

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_VARINT_LIMIT = 10


def find_layout(store: CheckpointStore) -> Layout | None:
    """How the newest checkpoint cuts its variables; None if there is no checkpoint, and empty if it does not
    record that.

    All checkpoints of a store have the same parts, since training that continues from a checkpoint keeps
    them.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    newest = store.latest()
    if newest is None:
        return None
    manifest, ref = newest
    if manifest.variables is not None:
        return manifest.variables
    return _layout_in_files(store.verify(ref), store) or {}


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


class SavedFiles(Mapping[str, Array]):
    """The whole variables and tables in TensorFlow's files, each read on access.

    Args:
        index: the file ``<prefix>.index``.
        store: the store of the checkpoint. With it goes the copy of a remote checkpoint's files.

    Raises:
        CheckpointError: the files can't be read.
    """

    def __init__(self, index: Path, store: CheckpointStore) -> None:
        self._store = store
        try:
            self._reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        except (tf.errors.OpError, ValueError) as error:
            raise CheckpointError(f"{index}: can't be read: {error}") from error
        self._shapes = self._reader.get_variable_to_shape_map()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._shapes))

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> Array:
        if name not in self._shapes:
            raise KeyError(name)
        return np.asarray(self._reader.get_tensor(name))


def layout_of_graph(graph: Any, partitions: Partitions) -> dict[str, VariableLayout]:
    """How a graph that was built with `partitions` cuts the variables that it saves."""
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
    for name, axis_starts in starts.items():
        cut = VariableLayout(shape=shapes[name], parts=[len(axis) for axis in axis_starts])
        layout[name] = cut.model_copy(update={"order": partitions.order(name, cut)})
    return layout


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
