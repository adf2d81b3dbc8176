"""Keras adapter: a model that would be trained by ``compile`` and ``fit``.

::

    def build() -> KerasModel:
        return KerasModel(network(), "sparse_categorical_crossentropy", "adam", ["accuracy"])

    fit(connect(), build, x, y, TrainingOptions(folder), epochs=10, validation_data=(x_val, y_val))

In a collective job the group is that of `edl_workflows.training.frameworks.tensorflow_collective`, so members
join and leave, and the global batch does not depend on their number. At the end of each epoch all members
validate. The numbers of rank 0 count (`edl_workflows.training.collective.epochs`), so that all members stop
after the same epoch. With parameter servers see `edl_workflows.training.frameworks.tf1.keras_servers`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.collective.world import World
from edl_workflows.training.frameworks.keras_model import KerasModel, KerasProgress, by_path, take_records
from edl_workflows.training.frameworks.saved_model import open_model
from edl_workflows.training.frameworks.tensorflow_collective import (
    Dataset,
    MirroredModel,
    TrainingOptions,
    training,
)
from edl_workflows.training.job import Job

__all__ = ["KerasModel", "TrainingOptions", "export_keras", "fit", "mirrored"]

_OF_RANK_0 = (keras.callbacks.CSVLogger, keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard)
"""Callbacks that write files."""
_REFUSED = {
    keras.callbacks.BackupAndRestore: "the job itself restores its newest checkpoint",
    keras.callbacks.ReduceLROnPlateau: "its state would be lost with a process: use a schedule of steps",
    keras.callbacks.LearningRateScheduler: "use a schedule of the optimizer, which counts steps",
    KerasProgress: "fit itself reports steps and metrics",
}


def mirrored(parts: KerasModel, example: Mapping[str, Any]) -> MirroredModel:
    """The model for a loop of one's own with `edl_workflows.training.frameworks.tensorflow_collective`.

    Args:
        parts: the model.
        example: inputs of one mini-batch: ``labels``, and the model's input as ``x``, or its inputs by name.

    Raises:
        InvalidError: two variables have the same path, or the model has none.
    """
    losses = parts.losses(training=True)
    return MirroredModel(
        weights=by_path(parts.model.trainable_variables),
        losses=lambda **inputs: losses(**inputs)[0],
        optimizer=keras.optimizers.get(parts.optimizer),
        example=example,
        more=by_path(parts.model.non_trainable_variables),
    )


def fit(
    job: Job,
    build: Callable[[], KerasModel],
    x: Any,
    y: Any,
    options: TrainingOptions,
    *,
    batch_size: int = 32,
    epochs: int = 1,
    validation_data: tuple[Any, Any] | None = None,
    monitor: str = "",
    maximize: bool = False,
    callbacks: Sequence[Any] = (),
    shuffle: bool = True,
    seed: int = 0,
    global_batch: int = 0,
) -> dict[str, list[float]]:
    """Train with the job's other workers, as ``model.fit`` would alone.

    Args:
        job: from `edl_workflows.training.connect`.
        build: builds the model; called once the group has formed.
        x: array of the inputs, or arrays by the inputs' names; the same in all members.
        y: array of the labels.
        options: where and how often checkpoints are saved.
        batch_size: records of a mini-batch.
        epochs: the most epochs.
        validation_data: inputs and labels that all members evaluate at the end of each epoch.
        monitor: the metric of the best checkpoint; by default ``val_loss``, without validation ``loss``.
        maximize: whether a greater value of it is better.
        shuffle: see `Dataset`.
        seed: see `Dataset`.
        global_batch: see `Dataset`.
        callbacks: callbacks of Keras. Their methods for epochs and for the whole training are called in all
            members, with the same numbers; those that write files only in rank 0. They may stop training;
            those of rank 0 decide.

    Returns:
        For each metric its values, one per epoch that this process took part in.

    Raises:
        InvalidError: a callback can't work in a job, or see
            `edl_workflows.training.frameworks.tensorflow_collective.training`.
        SystemExit: see there.
    """
    _check_callbacks(callbacks)
    if not job.cluster.collective:
        from edl_workflows.training.frameworks.tf1.keras_servers import ChiefEpochs, fit_with_servers

        ends = ChiefEpochs(job, options, callbacks, monitor, maximize=maximize)
        records = {"size": len(y), "batch_size": batch_size, "num_epochs": epochs}
        order = {"shuffle": shuffle, "seed": seed}
        return fit_with_servers(ends, build, (x, y), validation_data, {**records, **order})
    dataset = Dataset(len(y), batch_size, epochs, shuffle, seed, global_batch)
    monitor = monitor or ("val_loss" if validation_data else "loss")
    _check_monitors(callbacks, monitor, maximize=maximize)
    return _fit_mirrored(
        job, build, (x, y), validation_data, dataset, options, callbacks, monitor=monitor, maximize=maximize
    )


def _fit_mirrored(
    job: Job,
    build: Callable[[], KerasModel],
    records: tuple[Any, Any],
    validation_data: tuple[Any, Any] | None,
    dataset: Dataset,
    options: TrainingOptions,
    callbacks: Sequence[Any],
    *,
    monitor: str,
    maximize: bool,
) -> dict[str, list[float]]:
    x, y = records
    built: list[KerasModel] = []

    def build_mirrored() -> MirroredModel:
        built.append(build())
        return mirrored(built[0], take_records(x, y, [0]))

    with training(job, build_mirrored, dataset, options) as run:
        parts = built[0]
        parts.model.compile(
            optimizer=parts.optimizer, loss=parts.loss, metrics=list(parts.metrics), jit_compile=False
        )
        called = _Callbacks(parts.model, callbacks, run, monitor, maximize=maximize)
        history: dict[str, list[float]] = {}
        for epoch in run.epochs():
            called.begin(epoch)
            losses = [run.step([take_records(x, y, i) for i in mini_batches])[1] for mini_batches in run]
            evaluate = partial(_evaluate, parts.model, losses, validation_data, dataset.batch_size)
            stop = partial(called.end, epoch)
            for name, value in run.validate(evaluate, monitor, maximize=maximize, stop=stop).items():
                history.setdefault(name, []).append(value)
        called.finish()
    return history


def export_keras(checkpoint: CheckpointRef | Path | str, build: Callable[[], KerasModel], file: Path) -> None:
    """Write the model of a checkpoint in Keras's own format.

    Args:
        checkpoint: see `edl_workflows.training.open_model`.
        build: the function of the training program.
        file: the file to write; its name ends with ``.keras``.

    Raises:
        CheckpointError: there is no complete checkpoint, or it belongs to another model.
    """
    saved, model = open_model(checkpoint), build().model
    tensors = saved.tensors
    for path, variable in by_path(model.variables).items():
        if path not in tensors or tensors[path].shape != tuple(variable.shape):
            has = tensors[path].shape if path in tensors else "none"
            raise CheckpointError(
                f"{saved.checkpoint.uri}: belongs to another model: variable {path} is of shape "
                f"{tuple(variable.shape)}, in the checkpoint {has}"
            )
        variable.assign(tensors[path])
    model.save(file)


class _Callbacks:
    """The callbacks of Keras that this member calls.

    Args:
        model: the model.
        callbacks: all callbacks.
        run: the running training.
        monitor: the metric of the best checkpoint.
        maximize: whether a greater value of it is better.
    """

    def __init__(
        self, model: Any, callbacks: Sequence[Any], run: World, monitor: str, *, maximize: bool
    ) -> None:
        self._model = model
        self._monitor = monitor
        self._maximize = maximize
        self._run = run
        self._all = list(callbacks)
        model.stop_training = False
        for callback in self._all:
            callback.set_model(model)
        self._begun: set[int] = set()

    def begin(self, epoch: int) -> None:
        """Begin an epoch. Keras counts epochs from 0."""
        for callback in self._present():
            callback.on_epoch_begin(epoch - 1)

    def end(self, epoch: int, logs: Mapping[str, float]) -> bool:
        """End an epoch; whether the callbacks of this member want training to stop.

        Raises:
            InvalidError: a callback keeps the best model, and a greater value is better for only one of it
                and `fit`.
        """
        for callback in filter(_keeps_best, self._all):  # in all members, so that all of them end
            self._hand_over_best(callback)
        for callback in self._present():
            callback.on_epoch_end(epoch - 1, dict(logs))
        return bool(self._model.stop_training)

    def finish(self) -> None:
        """End the training."""
        for callback in self._present():
            callback.on_train_end()

    def _present(self) -> list[Any]:
        """The callbacks of this member. Its rank may have changed since the last epoch."""
        present = [one for one in self._all if self._run.rank == 0 or not isinstance(one, _OF_RANK_0)]
        for callback in present:
            if id(callback) not in self._begun:
                self._begun.add(id(callback))
                callback.on_train_begin()
                stops = isinstance(callback, keras.callbacks.EarlyStopping)
                if stops and callback.monitor == self._monitor and not math.isnan(self._run.best):
                    # It counts on after a restart.
                    callback.wait, callback.best = self._run.epochs_since_best, self._run.best
        return present

    def _hand_over_best(self, callback: Any) -> None:
        """Let the callback know the best value so far: another process may have written the file of that
        model."""
        if callback.monitor_op is None:  # with mode "auto", the metrics of the built model decide
            callback._set_monitor_op()  # noqa: SLF001 - Keras would do it only after this
        if bool(callback.monitor_op(1.0, 0.0)) is not self._maximize:
            raise _monitor_error(callback, self._monitor, maximize=self._maximize)
        if not math.isnan(self._run.best):
            better = max if self._maximize else min
            callback.best = better(self._run.best, self._run.best if callback.best is None else callback.best)


def _keeps_best(callback: Any) -> bool:
    return isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_best_only


def _check_monitors(callbacks: Sequence[Any], monitor: str, *, maximize: bool) -> None:
    contrary = "min" if maximize else "max"
    for callback in filter(_keeps_best, callbacks):
        if callback.monitor != monitor or callback.mode == contrary:
            raise _monitor_error(callback, monitor, maximize=maximize)


def _monitor_error(callback: Any, monitor: str, *, maximize: bool) -> InvalidError:
    """The error for a callback whose best value does not travel with the checkpoint."""
    return InvalidError(
        f"{type(callback).__name__}(save_best_only=True) monitors {callback.monitor} with mode "
        f"{callback.mode}, and fit {monitor} ({'greater' if maximize else 'smaller'} is better): after a "
        "restart it would overwrite its best model with a worse one. Monitor the same, with "
        "fit(monitor=…, maximize=…)"
    )


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    for callback in callbacks:
        for refused, reason in _REFUSED.items():
            if isinstance(callback, refused):
                raise InvalidError(f"{type(callback).__name__} does not work in an elastic job: {reason}")
        if isinstance(callback, keras.callbacks.EarlyStopping) and callback.restore_best_weights:
            raise InvalidError(
                "EarlyStopping(restore_best_weights=True) does not work in an elastic job: the weights would "
                "be lost with a process: take the checkpoint in the folder best"
            )


def _evaluate(
    model: Any, losses: Sequence[float], validation_data: tuple[Any, Any] | None, batch_size: int
) -> dict[str, float]:
    """The mean loss of the epoch's steps that this member has made, and the metrics of the validation."""
    metrics = {"loss": float(np.mean(losses)) if losses else float("nan")}
    if validation_data is not None:
        x, y = validation_data
        of_validation = model.evaluate(x, y, batch_size=batch_size, verbose=0, return_dict=True)
        metrics |= {f"val_{name}": float(value) for name, value in of_validation.items()}
    return metrics
