"""How the variables of a ``tf.compat.v1`` graph are cut while it is built, and how cut tables are looked up.

``embedding_lookup`` has two strategies for a table of n parts: with ``mod``, its default, id *i* is row
*i // n* of part *i % n*; with ``div`` the parts follow one another in the order of the ids. A checkpoint
holds the parts one after another. So with ``mod`` its rows are not in the order of the ids, and the same
program in one process, where the table is whole, would read other rows.

A program does not know that this library cuts its tables, so they are always looked up with ``div``. A
program that sets a partitioner has that partitioner in every process, and keeps its strategy.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import embedding_ops, variables

from edl_workflows.training.checkpoints.manifest import Layout, RowOrder, VariableLayout

PARTS = 16
"""Maximum number of parts of a variable, unless there are more servers."""
PART_BYTES = 256 * 2**10
"""Minimum size of a part, since many parts slow a step down."""
NAMED = 5
"""Variables that a warning names."""
_ORDERS = {"div": RowOrder.ID, "mod": RowOrder.MOD}

Partitioner = Callable[..., Sequence[int]]


def partition_by_size(most: int) -> Partitioner:
    """A partitioner that cuts a variable along its first axis into at most `most` parts of at least
    `PART_BYTES`."""

    def cut(shape: Any, dtype: Any) -> list[int]:
        rows = shape.as_list()[0]
        parts = min(rows, most, math.ceil(shape.num_elements() * dtype.size / PART_BYTES))
        return [max(1, parts), *[1] * (len(shape) - 1)]

    return cut


class Partitions:
    """Cuts the variables of a graph while it is built, and records how its tables are looked up.

    Args:
        partitioner: cuts variables for which the program sets no partitioner; None leaves them whole.
        layout: how the checkpoint from which training starts cuts its variables; None without a checkpoint.
            These are cut and looked up as there, whatever partitioner the program sets. Versions that did not
            record the order left it to the program.
    """

    def __init__(self, partitioner: Partitioner | None, layout: Layout | None) -> None:
        self._partitioner = partitioner
        self._layout = layout or {}
        self._new = layout is None
        self._in_id_order: set[str] = set()
        self._strategies: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Cut the variables that are made, and observe the lookups, in a ``with`` block in the graph."""
        scope = tf.compat.v1.get_variable_scope()
        original = embedding_ops._embedding_lookup_and_transform  # noqa: SLF001 - all lookups call it
        embedding_ops._embedding_lookup_and_transform = self._observe(original)  # noqa: SLF001
        try:
            with tf.compat.v1.variable_scope(
                scope, partitioner=self._partitioner, custom_getter=self._make_variable
            ):
                yield
        finally:
            embedding_ops._embedding_lookup_and_transform = original  # noqa: SLF001

    def order(self, name: str, variable: VariableLayout) -> RowOrder | None:
        """How the rows of a variable, or of an optimizer's slot for it, are ordered; None if it has only one
        part."""
        if not variable.parts or variable.parts[0] == 1:
            return None
        table = self._table_of(name)
        if table in self._in_id_order:
            return RowOrder.ID
        strategies = self._strategies.get(table, set())
        if len(strategies) > 1:
            return RowOrder.MIXED
        if strategies:
            return _ORDERS[next(iter(strategies))]
        saved = self._layout.get(name)
        return RowOrder.ID if saved is None or saved.order is None else saved.order

    def _table_of(self, name: str) -> str:
        tables = self._in_id_order | self._strategies.keys()
        return max((table for table in tables if f"{name}/".startswith(f"{table}/")), key=len, default=name)

    def _make_variable(self, getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        """The scope's custom getter."""
        saved = self._layout.get(name)
        partitioner = kwargs.get("partitioner")
        by_program = partitioner is not None and partitioner is not self._partitioner
        if saved is None:
            if self._new and partitioner is not None and not by_program:
                self._in_id_order.add(name)
            return getter(name, *args, **kwargs)
        if saved.order is RowOrder.ID:
            self._in_id_order.add(name)
        whole = self._partitioner is None and saved.order is RowOrder.ID and not by_program
        if not whole and (partitioner is not None or math.prod(saved.parts) > 1):
            kwargs["partitioner"] = lambda **_: list(saved.parts)
        return getter(name, *args, **kwargs)

    def _observe(self, look_up: Callable[..., Any]) -> Callable[..., Any]:
        def observed(
            params: Any, ids: Any, partition_strategy: str = "mod", *args: Any, **kwargs: Any
        ) -> Any:
            table = _name_of_table(params)
            if table:
                if table in self._in_id_order:
                    partition_strategy = "div"
                self._strategies.setdefault(table, set()).add(partition_strategy)
            return look_up(params, ids, partition_strategy, *args, **kwargs)

        return observed


def _name_of_table(params: Any) -> str:
    """The name of the variable whose parts are looked up, all of them in their order; "" for anything
    else."""
    if not isinstance(params, (list, tuple, variables.PartitionedVariable)):
        return ""
    slices = [_slice_of(part) for part in params]
    if len(slices) < 2 or None in slices:
        return ""
    first, end = slices[0], 0
    for part in slices:
        if part.full_name != first.full_name or part.var_offset[0] != end:
            return ""
        end += part.var_shape[0]
    return str(first.full_name) if end == first.full_shape[0] else ""


def _slice_of(variable: Any) -> Any:
    """Which slice of a whole variable a part is; None if it is no part."""
    read = getattr(variable, "_get_save_slice_info", lambda: None)
    return read()


def warn_of_layout(graph: Any, layout: Layout) -> list[str]:
    """Warnings about variables that are not spread over the servers, and about tables whose rows other
    readers of a checkpoint would find elsewhere.

    Args:
        graph: graph of the model.
        layout: how it cuts its variables.
    """
    sizes = {
        variable.op.name: variable.shape.num_elements() * variable.dtype.size
        for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        if _slice_of(variable) is None and variable.shape.is_fully_defined()
    }
    whole = [name for name in sizes if sizes[name] > PART_BYTES]
    unordered = [name for name in layout if layout[name].order in (RowOrder.MOD, RowOrder.MIXED)]
    warnings = []
    if whole:
        named = [f"{name} ({sizes[name] / 2**20:.1f} MiB)" for name in _without_slots(whole, sizes)]
        warnings.append(
            f"on one parameter server each, however many there are: {_list_names(named)}; only variables of "
            "tf.compat.v1.get_variable are spread, not those of tf.Variable or of Keras layers"
        )
    if unordered:
        warnings.append(
            "the program sets a partitioner and looks up with partition_strategy 'mod': "
            f"{_list_names(_without_slots(unordered))}; their rows are not in the order of the ids in the "
            "checkpoints: read these with open_model of edl_workflows.training"
        )
    return warnings


def _without_slots(variables: Sequence[str], sizes: Mapping[str, int] = MappingProxyType({})) -> list[str]:
    """The variables without the optimizer's slots for them, the largest first."""
    names = [name for name in variables if not any(name.startswith(f"{other}/") for other in variables)]
    return sorted(names, key=lambda name: (-sizes.get(name, 0), name))


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
