"""The variables of a ``tf.compat.v1`` graph as whole tensors, however they are split over parameter servers.

Like TensorFlow's own checkpoints, they can be restored with another number of servers.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.training import MAX_FINGERPRINTS
from edl_workflows.training.checkpoints.manifest import Layout
from edl_workflows.training.checkpoints.tensors import Array, State, TensorSpec
from edl_workflows.training.frameworks.tf1.tf_check import BATCH_TENSOR

tf1 = tf.compat.v1

SAMPLED_ROWS = 64
SAMPLED_BYTES = 2**18
"""Bounds of the sample of one variable."""
FETCH_BYTES = 64 * 2**20
"""Total size of the variables that are fetched at a time; larger groups would only take more memory."""


@dataclass(frozen=True)
class _Part:
    """A variable, which may be a slice of a tensor.

    Attributes:
        variable: the variable in the graph.
        tensor: name of the tensor.
        spec: type and shape of the whole tensor.
        slices: position of the variable in the tensor.
    """

    variable: Any
    tensor: str
    spec: TensorSpec
    slices: tuple[slice, ...]

    @property
    def size(self) -> int:
        """Bytes of the variable."""
        return (
            int(np.prod([s.stop - s.start for s in self.slices], dtype=np.int64)) * self.spec.dtype.itemsize
        )


class GraphVariables:
    """Saves and restores the variables of a graph.

    Args:
        variables: variables of the graph; each partition of a partitioned variable is listed separately.

    Raises:
        InvalidError: a variable can't be saved.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._parts = [_part(variable) for variable in variables]
        self._specs = {part.tensor: part.spec for part in self._parts}

    def state(self, session: Any, step: int, layout: Layout | None = None, batch: bytes = b"") -> State:
        """The variables' values and `batch` as a state. The values are fetched only when the state is
        copied.
        """
        specs = dict(self._specs)
        if batch:
            specs[BATCH_TENSOR] = TensorSpec(np.dtype(np.uint8), (len(batch),))

        def fill(tensors: Mapping[str, Array]) -> None:
            if batch:
                tensors[BATCH_TENSOR][:] = np.frombuffer(batch, np.uint8)
            for group in _groups(self._parts):
                for part, value in zip(group, session.run([part.variable for part in group]), strict=True):
                    tensors[part.tensor][part.slices] = value

        return State(step, specs, fill, layout=layout)

    def restore(self, session: Any, tensors: Mapping[str, Array], where: str) -> None:
        """Set all variables.

        Raises:
            CheckpointError: the tensors belong to another model.
        """
        for part in self._parts:
            tensor = tensors.get(part.tensor)
            if tensor is None or tensor.shape != part.spec.shape or tensor.dtype != part.spec.dtype:
                description = "none" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
                raise CheckpointError(
                    f"{where}: can't be restored into this model: variable {part.tensor} is "
                    f"{part.spec.dtype} of shape {part.spec.shape}, in the checkpoint {description}"
                )
        for group in _groups(self._parts):
            # Feed the values in place of the initial ones, since the finalized graph has no other assign
            # operations.
            session.run(
                [part.variable.initializer for part in group],
                {_initial(part.variable): tensors[part.tensor][part.slices] for part in group},
            )


class VariableSample:
    """Operations that read a fixed sample of the rows of each variable of a graph, wherever they are placed.

    Args:
        variables: see `GraphVariables`.

    Raises:
        InvalidError: see `GraphVariables`.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._rows: dict[str, list[Any]] = {}
        for part in sorted(map(_part, variables), key=_place_of):
            rows = self._rows.setdefault(part.tensor, [])
            sampled = _sampled_rows(part.spec)
            if not part.slices:
                rows.append(tf.identity(part.variable))
            elif own := [row - part.slices[0].start for row in sampled if _has_row(part, row)]:
                with tf1.colocate_with(part.variable.op):
                    rows.append(tf.gather(part.variable, own))

    def fingerprints(self, session: Any) -> dict[str, str]:
        """A digest of the sampled rows by name of the variable. If there are very many variables, the last
        digest is that of the rest."""
        digests = {
            name: hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
            for name, arrays in session.run(self._rows).items()
        }
        names = sorted(digests)
        rest = names[MAX_FINGERPRINTS - 1 :] if len(names) > MAX_FINGERPRINTS else []
        shown = {name: digests[name].hexdigest() for name in names if name not in rest}
        if rest:
            joined = b"".join(digests[name].digest() for name in rest)
            shown[f"{rest[0]} and all after it"] = hashlib.sha256(joined).hexdigest()
        return shown


def _place_of(part: _Part) -> tuple[Any, ...]:
    return (part.tensor, *(part_slice.start for part_slice in part.slices))


def _has_row(part: _Part, row: int) -> bool:
    return bool(part.slices[0].start <= row < part.slices[0].stop)


def _sampled_rows(spec: TensorSpec) -> list[int]:
    """Indices of rows, the same wherever the tensor is cut, from the first to the last."""
    if not spec.shape or not spec.size:
        return []
    rows = spec.shape[0]
    count = max(2, min(SAMPLED_ROWS, SAMPLED_BYTES * rows // spec.size))
    return sorted({round(row) for row in np.linspace(0, rows - 1, count)})


def _part(variable: Any) -> _Part:
    whole = variable._get_save_slice_info()  # noqa: SLF001 - what TensorFlow's own Saver asks
    try:
        dtype = np.dtype(variable.dtype.base_dtype.as_numpy_dtype)
        shape = tuple(variable.shape.as_list())
        if whole is None:
            return _Part(
                variable, variable.op.name, TensorSpec(dtype, shape), tuple(slice(0, n) for n in shape)
            )
        slices = tuple(
            slice(start, start + n) for start, n in zip(whole.var_offset, whole.var_shape, strict=True)
        )
        return _Part(variable, whole.full_name, TensorSpec(dtype, tuple(whole.full_shape)), slices)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"variable {variable.name}: has no statically known shape: {error}") from error


def _initial(variable: Any) -> Any:
    """The tensor that the variable's initializer assigns to the variable."""
    return variable.initializer.inputs[1]


def _groups(parts: Sequence[_Part]) -> list[list[_Part]]:
    groups: list[list[_Part]] = [[]]
    size = 0
    for part in parts:
        if groups[-1] and size + part.size > FETCH_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return groups if groups[0] else []
