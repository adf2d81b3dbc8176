"""The variables of a ``tf.compat.v1`` graph as whole tensors, however they are split over parameter servers.

Like TensorFlow's own checkpoints, they can be restored with another number of servers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.manifest import Layout
from edl_workflows.training.checkpoints.tensors import Array, State, TensorSpec
from edl_workflows.training.frameworks.tf_check import BATCH_TENSOR

tf1 = tf.compat.v1

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
