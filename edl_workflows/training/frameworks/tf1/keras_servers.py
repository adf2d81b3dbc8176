"""Keras models with parameter servers: the graph of a `KerasModel`, and its training over epochs.

Workers don't step together, so an epoch has no end that is the same for all. For the chief it is the moment
in which it gets the first batch of the next epoch; meanwhile the others go on. So only the chief validates,
calls callbacks and keeps the best checkpoint, and no callback can stop the training.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.collective.epochs import BEST, EpochEnds, choose_monitored
from edl_workflows.training.frameworks.keras_model import LABELS, KerasModel, align, take_records
from edl_workflows.training.frameworks.tensorflow import Model, ParameterServerTraining, tf1, training
from edl_workflows.training.job import Job
from edl_workflows.training.options import TrainingOptions

DATASET = "fit"
"""Name of the job's data set."""
SHARD_BATCHES = 4
"""Mini-batches of a shard: few, so that each worker takes part in each epoch."""
_REFUSED = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)
_VALUE = "value"
"""Key of the monitored metric in the manifest of the best checkpoint."""
_OPTIMIZERS: Mapping[type, Callable[[Any, Any], Any]] = {
    keras.optimizers.SGD: lambda o, rate: (
        tf1.train.MomentumOptimizer(rate, o.momentum, use_nesterov=o.nesterov)
        if o.momentum
        else tf1.train.GradientDescentOptimizer(rate)
    ),
    keras.optimizers.Adam: lambda o, rate: tf1.train.AdamOptimizer(rate, o.beta_1, o.beta_2, o.epsilon),
    keras.optimizers.Adagrad: lambda o, rate: tf1.train.AdagradOptimizer(rate, o.initial_accumulator_value),
    keras.optimizers.RMSprop: lambda o, rate: tf1.train.RMSPropOptimizer(
        rate, o.rho, o.momentum, o.epsilon, centered=o.centered
    ),
}
"""The same updates with variables on servers, where the optimizers of Keras don't run."""

log = logging.getLogger(__name__)


class ServedModel:
    """The graph of a model, made in the default graph.

    Args:
        parts: the model.
        example: inputs of one mini-batch.

    Attributes:
        in_graph: for `edl_workflows.training.frameworks.tensorflow.training`.

    Raises:
        InvalidError: there is no such optimizer or metric with parameter servers.
    """

    def __init__(self, parts: KerasModel, example: Mapping[str, Any]) -> None:
        inputs = {
            name: tf1.placeholder(tf.as_dtype(value.dtype), [None, *value.shape[1:]], name=name)
            for name, value in example.items()
        }
        graph = tf1.get_default_graph()
        before = len(graph.get_operations())
        losses, _ = parts.losses(training=True)(**inputs)
        # The statistics of batches are updated by operations that nothing else needs.
        updates = [made for made in graph.get_operations()[before:] if made.type == "AssignVariableOp"]
        variables = [variable.value for variable in parts.model.trainable_variables]
        loss = tf.reduce_mean(losses)
        with tf1.control_dependencies(updates):
            step = tf1.train.get_global_step()
            train = _make_optimizer(parts.optimizer).minimize(loss, global_step=step, var_list=variables)
        each, predicted = parts.losses(training=False)(**inputs)
        labels = align(inputs[LABELS], predicted)
        self._metrics = {"val_loss": tf.reduce_mean(each)}
        for name, function in _metric_functions(parts.metrics, labels, predicted):
            self._metrics[f"val_{name}"] = tf.reduce_mean(tf.cast(function(labels, predicted), tf.float32))
        self.in_graph = Model(train, loss, inputs, example, self._metrics["val_loss"])

    def evaluate(self, session: Any, x: Any, y: Any, batch_size: int) -> dict[str, float]:
        """The metrics over all records."""
        totals = dict.fromkeys(self._metrics, 0.0)
        for start in range(0, len(y), batch_size):
            records = range(start, min(start + batch_size, len(y)))
            taken = take_records(x, y, records)
            feed = {self.in_graph.inputs[name]: values for name, values in taken.items()}
            for name, value in session.run(self._metrics, feed_dict=feed).items():
                totals[name] += float(value) * len(records)
        return {name: total / len(y) for name, total in totals.items()}


class ChiefEpochs:
    """The ends of epochs, as the chief sees them.

    Args:
        job: the job.
        options: where checkpoints are saved.
        callbacks: of Keras.
        monitor: the metric of the best checkpoint; by default ``val_loss``, without validation ``loss``.
        maximize: whether a greater value of it is better.

    Attributes:
        history: for each metric its values.

    Raises:
        InvalidError: a callback would stop the training, or needs the model.
    """

    def __init__(
        self, job: Job, options: TrainingOptions, callbacks: Sequence[Any], monitor: str, *, maximize: bool
    ) -> None:
        if refused := [type(callback).__name__ for callback in callbacks if isinstance(callback, _REFUSED)]:
            raise InvalidError(
                f"{refused[0]} does not work with parameter servers, whose workers don't step together, and "
                "which hold the model: train with all-reduce, or take the best checkpoint"
            )
        self.job, self.options = job, options
        self.history: dict[str, list[float]] = {}
        self._best = open_store(f"{str(options.checkpoint_dir).rstrip('/')}/{BEST}", keep=1)
        self._callbacks = callbacks
        self._begun = False
        self._monitor = monitor
        self._maximize = maximize
        newest = self._best.latest()
        saved = (newest[0].position or {}).get(_VALUE) if newest else None
        self._ends = EpochEnds() if saved is None else EpochEnds(best=float(saved), best_epoch=1)

    def end(self, epoch: int, step: int, logs: Mapping[str, float], run: ParameterServerTraining) -> None:
        """End an epoch."""
        if not self._begun:
            self._begun = True
            for callback in self._callbacks:
                callback.on_train_begin()
        self.job.report(step, logs)
        value = logs[choose_monitored(logs, self._monitor or ("val_loss" if "val_loss" in logs else "loss"))]
        if self._ends.improves(value, maximize=self._maximize):
            try:
                run.save(self._best, {_VALUE: value})
            except CheckpointError as error:
                log.warning("the checkpoint of the best epoch could not be saved: %s", error)
        self._ends = self._ends.after(epoch, value, maximize=self._maximize)
        for callback in self._callbacks:
            callback.on_epoch_end(epoch - 1, dict(logs))
        for name, number in logs.items():
            self.history.setdefault(name, []).append(number)

    def finish(self) -> None:
        """End the training."""
        for callback in self._callbacks if self._begun else ():
            callback.on_train_end()


def fit_with_servers(
    ends: ChiefEpochs,
    build: Callable[[], KerasModel],
    records: tuple[Any, Any],
    validation_data: tuple[Any, Any] | None,
    dataset: Mapping[str, Any],
) -> dict[str, list[float]]:
    """Train with parameter servers; see `edl_workflows.training.frameworks.keras.fit`.

    Args:
        ends: what the chief does at the ends of epochs.
        build: builds the model.
        records: inputs and labels.
        validation_data: inputs and labels of the validation.
        dataset: parameters of the job's data set.
    """
    built: list[ServedModel] = []

    def build_served() -> Model:
        built.append(ServedModel(build(), take_records(*records, [0])))
        return built[-1].in_graph

    with training(ends.job, build_served, ends.options) as run:
        for epoch, step, loss in _train_epochs(run, records, dataset):
            if ends.job.is_chief:
                logs = {"loss": loss}
                if validation_data is not None:
                    logs |= built[-1].evaluate(run.session, *validation_data, dataset["batch_size"])
                ends.end(epoch, step, logs, run)
        ends.finish()
    return ends.history


def _train_epochs(
    run: ParameterServerTraining, records: tuple[Any, Any], dataset: Mapping[str, Any]
) -> Iterator[tuple[int, int, float]]:
    """Train; yields each epoch that this worker has left, the global step, and the mean loss of its own
    steps."""
    epoch, step, losses = 0, 0, list[float]()
    params = {**dataset, "splitter": "text", "num_minibatches_per_shard": SHARD_BATCHES}
    for batch in run.job.batches(DATASET, **params):
        if losses and batch.epoch > epoch:
            yield epoch, step, float(np.mean(losses))
            losses.clear()
        epoch = max(epoch, batch.epoch)  # a lost worker's shard of an earlier epoch may come late
        step, loss = run.step(**take_records(*records, batch.indices))
        losses.append(loss)
    if losses:
        yield epoch, step, float(np.mean(losses))


def _make_optimizer(optimizer: Any) -> Any:
    chosen = keras.optimizers.get(optimizer)
    rate = chosen._learning_rate  # noqa: SLF001 - the public property hides whether it is a schedule
    make = _OPTIMIZERS.get(type(chosen))
    if make is None or isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        names = ", ".join(sorted(known.__name__ for known in _OPTIMIZERS))
        raise InvalidError(
            f"{type(chosen).__name__}: with parameter servers the optimizer is one of {names}, with a "
            "constant learning rate"
        )
    return make(chosen, rate.value)


def _metric_functions(
    metrics: Sequence[Any], labels: Any, predicted: Any
) -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
    for metric in metrics:
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", str(metric))
        if name in ("accuracy", "acc"):
            sparse = len(labels.shape) < len(predicted.shape)
            kind = "binary" if predicted.shape[-1] == 1 else "sparse_categorical" if sparse else "categorical"
            yield name, getattr(keras.metrics, f"{kind}_accuracy")
            continue
        function = getattr(keras.metrics, metric, None) if isinstance(metric, str) else metric
        if function is None or isinstance(function, type | keras.metrics.Metric):
            raise InvalidError(
                f"metric {name}: with parameter servers it is a function of Keras, or its name"
            )
        yield name, function
