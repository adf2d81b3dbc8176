"""How the variables of a ``tf.compat.v1`` graph are cut into parts: by a rule when training begins, and ever after as the
checkpoints say. The number of parameter servers decides only where the parts are.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from edl_workflows.agent.checkpoints import CheckpointStore
from edl_workflows.agent.layout import Layout, VariableLayout
from edl_workflows.agent.tf_index import read_layout
from edl_workflows.protocol.cluster import CheckpointRef

VARIABLES = tf.compat.v1.GraphKeys.GLOBAL_VARIABLES
LOCAL = tf.compat.v1.GraphKeys.LOCAL_VARIABLES
SAVEABLES = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
_TABLES = ("MutableHashTable", "MutableHashTableOfTensors", "MutableDenseHashTable")
_STATEFUL = {"VarHandleOp", "VariableV2", "Variable", *_TABLES, *(f"{name}V2" for name in _TABLES)}

PARTS = 16
"""The most parts of a variable, as long as there are no more servers than that."""
PART_BYTES = 256 * 2**10
"""A part has at least so many bytes: more parts make a step slower."""

Partitioner = Callable[[Any, Any], list[int]]


def partition_by_size(most: int) -> Partitioner:
    """Cuts a variable along its first axis, so that no part is smaller than `PART_BYTES`, into at most so many parts."""

    def cut(shape: Any, dtype: Any) -> list[int]:
        rows = shape.as_list()[0]
        parts = min(rows, most, math.ceil(shape.num_elements() * dtype.size / PART_BYTES))
        return [max(1, parts), *[1] * (len(shape) - 1)]

    return cut


def partition_as(layout: Layout) -> Callable[..., Any]:
    """A custom getter of variables which cuts each as a checkpoint has it, whatever partitioner the program names."""

    def get(getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        saved = layout.get(name)
        if saved is not None and (kwargs.get("partitioner") is not None or math.prod(saved.parts) > 1):
            kwargs["partitioner"] = lambda **_: list(saved.parts)
        return getter(name, *args, **kwargs)

    return get


def find_layout(store: CheckpointStore) -> Layout | None:
    """How the newest checkpoint cuts its variables; None if there is none, or it does not say.

    All checkpoints in a folder say the same, since who goes on from one keeps its cut.

    Raises:
        CheckpointError: it is damaged.
    """
    newest = store.latest()
    if newest is None:
        return None
    manifest, ref = newest
    return (
        manifest.variables if manifest.variables is not None else _layout_in_files(store.verify(ref), store)
    )


def layout_of_checkpoint(ref: CheckpointRef, store: CheckpointStore) -> Layout | None:
    """How a whole checkpoint cuts its variables; None if it does not say.

    Raises:
        CheckpointError: it is damaged.
    """
    recorded = store.manifest(ref).variables
    return recorded if recorded is not None else _layout_in_files(ref, store)


def _layout_in_files(ref: CheckpointRef, store: CheckpointStore) -> Layout | None:
    """Of a checkpoint whose manifest does not say it, since an earlier version saved it: TensorFlow's own format does."""
    index = next(store.local(ref).glob("*.index"), None)
    return None if index is None else read_layout(index)


def layout_of_graph(graph: Any) -> dict[str, VariableLayout]:
    """How a graph cuts what it saves."""
    shapes: dict[str, list[int]] = {}
    starts: dict[str, list[set[int]]] = {}
    layout = {spec.name: VariableLayout() for one in graph.get_collection(SAVEABLES) for spec in one.specs}
    for variable in graph.get_collection(VARIABLES):
        part = variable._get_save_slice_info()  # noqa: SLF001 - what TensorFlow's own Saver asks
        if part is not None:
            shapes[part.full_name] = list(part.full_shape)
            found = starts.setdefault(part.full_name, [set() for _ in part.full_shape])
            for axis, start in enumerate(part.var_offset):
                found[axis].add(start)
        elif variable.shape.is_fully_defined():
            shape = variable.shape.as_list()
            layout[variable.op.name] = VariableLayout(shape=shape, parts=[1] * len(shape))
        else:
            layout[variable.op.name] = VariableLayout()
    cut = {name: VariableLayout(shape=shapes[name], parts=[len(s) for s in starts[name]]) for name in shapes}
    return {**layout, **cut}


def unsaved_state(graph: Any, *, in_two_stages: bool) -> str:
    """What of a model no checkpoint holds, so that it is lost with the servers; "" if all is saved.

    Args:
        graph: of the model.
        in_two_stages: only variables are saved, no tables.
    """
    kept = {v.op.name for collection in (VARIABLES, LOCAL, "edl") for v in graph.get_collection(collection)}
    if not in_two_stages:
        tables = [getattr(one.op, "resource_handle", None) for one in graph.get_collection(SAVEABLES)]
        kept |= {handle.op.name for handle in tables if handle is not None}
    for operation in graph.get_operations():
        if operation.type in _STATEFUL and operation.name not in kept:
            hint = "; with async_save only variables are saved" if "Table" in operation.type else ""
            return f"{operation.type} {operation.name} is not saved with the checkpoints, and would be lost{hint}"
    return ""
