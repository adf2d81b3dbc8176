"""A Keras model as ``compile`` takes it, its losses, and a callback for programs with ``fit``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.telemetry import progress

LABELS = "labels"
"""Name of the labels among the inputs of the losses."""


@dataclass(frozen=True)
class KerasModel:
    """A model as ``compile`` takes it.

    Attributes:
        model: a functional or sequential model, or a subclass that is built.
        loss: a loss of Keras, by name, as a function or as an object. Its reduction is not used: the loss of
            a step is the mean over the records of all members, plus the losses that layers add.
        optimizer: an optimizer of Keras, or its name.
        metrics: of the validation, as of ``compile``.
    """

    model: Any
    loss: Any
    optimizer: Any = "adam"
    metrics: Sequence[Any] = ()

    def losses(self, *, training: bool) -> Callable[..., tuple[Any, Any]]:
        """A function that returns the loss of each record, and the predictions. It takes ``labels``, and the
        model's input as ``x``, or its inputs by name."""
        loss = keras.losses.get(self.loss)
        compute = loss.call if isinstance(loss, keras.losses.Loss) else loss

        def compute_losses(labels: Any, **inputs: Any) -> tuple[Any, Any]:
            predicted = self.model(inputs["x"] if inputs.keys() == {"x"} else inputs, training=training)
            each = compute(align(labels, predicted), predicted)
            if len(each.shape) > 1:
                each = tf.reduce_mean(each, axis=list(range(1, len(each.shape))))
            added = self.model.losses
            return (each + tf.add_n(added) if added else each), predicted

        return compute_losses


class KerasProgress(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Reports steps, loss and metrics of ``model.fit`` to the job (`edl_workflows.training.progress`), as in
    ``model.fit(x, y, epochs=10, callbacks=[KerasProgress()])``."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def on_train_batch_end(self, _batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report a step, with the mean loss of the epoch so far."""
        self._steps += 1
        progress(self._steps, (logs or {}).get("loss"))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the metrics of an epoch, with its mean loss."""
        metrics = {name: float(value) for name, value in (logs or {}).items() if name != "loss"}
        progress(self._steps, (logs or {}).get("loss"), epoch=epoch + 1, **metrics)


def align(labels: Any, predicted: Any) -> Any:
    """The labels with as many dimensions as the predictions, if these have one of size 1 more."""
    missing = len(labels.shape) + 1 == len(predicted.shape) and predicted.shape[-1] == 1
    return labels[..., tf.newaxis] if missing else labels


def take_records(x: Any, y: Any, records: Sequence[int]) -> dict[str, Any]:
    """Some records as inputs of the losses."""
    chosen = list(records)
    inputs = x if isinstance(x, Mapping) else {"x": x}
    taken = {name: np.asarray(values)[chosen] for name, values in inputs.items()}
    return {LABELS: np.asarray(y)[chosen], **taken}


def by_path(variables: Sequence[Any]) -> dict[str, Any]:
    """Variables by their paths in the model.

    Raises:
        InvalidError: two have the same path.
    """
    paths = [variable.path for variable in variables]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise InvalidError(f"several variables have the path {twice[0]}: give the model's layers names")
    return dict(zip(paths, variables, strict=True))
