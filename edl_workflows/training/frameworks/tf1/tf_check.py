"""Compares a ``tf.compat.v1`` model before and after a switch of versions by its loss on the last batch.

The batch is stored with the variables in the checkpoint of the switch, so that the restored model gets the
same inputs.
"""

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.checkpoints.tensors import Array

BATCH_FILE = "batch.npy"
BATCH_TENSOR = "edl.batch"
"""Name of the tensor with this file's content, in a checkpoint that is saved in two stages."""
MAX_BATCH_BYTES = 16 * 2**20
"""Limit for the stored batch. If a batch is larger, only its first records are stored."""
SAME = 1e-6
"""Tolerance for two losses of the same model in the same process."""


class LossCheck:
    """Evaluates the loss of one batch repeatedly.

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
        """The loss of the last batch, which is stored with the next checkpoint.

        Raises:
            InvalidError: there is nothing to compare.
        """
        self._kept = b""
        if not self.inputs:
            raise InvalidError("the model has no inputs, so the records of its loss are unknown")
        if self.last is None:
            raise InvalidError("the chief has made no step yet")
        batch = encode_batch(self.last)
        first, second = self.of(session, batch), self.of(session, batch)
        if not math.isclose(first, second, rel_tol=SAME, abs_tol=SAME):
            raise InvalidError(
                f"the loss of the same records is {first:.9g} and {second:.9g}: it is random, as with "
                "dropout; set Model.check to a scalar that is not"
            )
        self._kept = batch
        return second

    def of(self, session: Any, batch: bytes) -> float:
        """The loss of a stored batch.

        Raises:
            InvalidError: the batch is empty.
        """
        if not batch:
            raise InvalidError("no batch was stored with the checkpoint")
        values = decode_batch(batch)
        return float(session.run(self.loss, {self.inputs[name]: value for name, value in values.items()}))

    def pop_batch(self) -> bytes:
        """The batch to store with the checkpoint that is being saved. Each batch is returned only once."""
        kept, self._kept = self._kept, b""
        return kept


def encode_batch(values: Mapping[str, Any]) -> bytes:
    """Serialize inputs without pickle.

    Raises:
        InvalidError: they are not arrays, or too large to be stored.
    """
    try:
        arrays = {name: _plain(np.asarray(value)) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise InvalidError(f"the inputs of a step are not arrays: {error}") from error
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_BATCH_BYTES:
        arrays = _first_records(arrays, MAX_BATCH_BYTES / size)
    content = io.BytesIO()
    # Not np.savez: an input's name may clash with its parameters, which differ between versions of NumPy.
    for array in (np.array(list(arrays), np.str_), *arrays.values()):
        np.save(content, array, allow_pickle=False)
    return content.getvalue()


def decode_batch(batch: bytes) -> dict[str, Array]:
    """The inverse of `encode_batch`."""
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
