"""What a ``tf.compat.v1`` model says of the same inputs before and after a switch: its loss of the last batch.

The batch is kept beside the variables in the checkpoint of the switch, so that whoever restores it asks the same.
"""

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edl_workflows.agent.tensors import Array
from edl_workflows.exceptions import InvalidError

BATCH_FILE = "batch.npy"
BATCH_TENSOR = "edl.batch"
"""The file's content as a tensor, in a checkpoint that is saved in two stages."""
MAX_BATCH_BYTES = 16 * 2**20
"""Of a larger batch the first records are kept."""
SAME = 1e-6
"""Relative difference of two losses of the same model in the same process."""


class LossCheck:
    """The loss of one batch, again and again.

    Args:
        loss: a scalar tensor.
        inputs: placeholders by name.
    """

    def __init__(self, loss: Any, inputs: Mapping[str, Any]) -> None:
        self.loss = loss
        self.inputs = inputs
        self.last: Mapping[str, Any] | None = None
        """Values of the inputs in the newest step of this process."""
        self._kept = b""

    def before(self, session: Any) -> float:
        """The loss of the last batch, which is kept for the checkpoint that comes next.

        Raises:
            InvalidError: there is nothing that could be compared.
        """
        self._kept = b""
        if not self.inputs:
            raise InvalidError("the model has no inputs: which records its loss is of can't be said")
        if self.last is None:
            raise InvalidError("the chief has made no step yet")
        batch = encode(self.last)
        first, second = self.of(session, batch), self.of(session, batch)
        if not math.isclose(first, second, rel_tol=SAME, abs_tol=SAME):
            raise InvalidError(
                f"the loss of the same records is {first:.9g} and {second:.9g}: it is random, as with dropout; give "
                "Model.check, a scalar that is not"
            )
        self._kept = batch
        return second

    def of(self, session: Any, batch: bytes) -> float:
        """The loss of a batch that was kept.

        Raises:
            InvalidError: there is none.
        """
        if not batch:
            raise InvalidError("no batch was kept with the checkpoint")
        values = decode(batch)
        return float(session.run(self.loss, {self.inputs[name]: value for name, value in values.items()}))

    def take(self) -> bytes:
        """The batch that belongs to the checkpoint that is saved now; only once."""
        kept, self._kept = self._kept, b""
        return kept


def encode(values: Mapping[str, Any]) -> bytes:
    """Inputs as bytes, without pickle.

    Raises:
        InvalidError: they are no arrays, or too large to be kept.
    """
    try:
        arrays = {name: _plain(np.asarray(value)) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise InvalidError(f"the inputs of a step are no arrays: {error}") from error
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_BATCH_BYTES:
        arrays = _first_records(arrays, MAX_BATCH_BYTES / size)
    content = io.BytesIO()
    # Not np.savez: an input may be called like one of its parameters, and those differ between versions of NumPy.
    for array in (np.array(list(arrays), np.str_), *arrays.values()):
        np.save(content, array, allow_pickle=False)
    return content.getvalue()


def decode(batch: bytes) -> dict[str, Array]:
    """What `encode` was given."""
    content = io.BytesIO(batch)
    names = np.load(content, allow_pickle=False)
    return {str(name): np.load(content, allow_pickle=False) for name in names}


def _plain(array: Array) -> Array:
    return array.astype(np.bytes_) if array.dtype == object else array


def _first_records(arrays: Mapping[str, Array], share: float) -> dict[str, Array]:
    lengths = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    records = int(min(lengths) * share)
    if len(lengths) != 1 or not records:
        raise InvalidError(f"the inputs of a step are larger than {MAX_BATCH_BYTES >> 20} MiB")
    return {name: array[:records] for name, array in arrays.items()}
