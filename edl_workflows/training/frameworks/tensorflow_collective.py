"""TensorFlow adapter for collective jobs: an elastic ``MultiWorkerMirroredStrategy`` with gradient
accumulation.

A training program defines how to build its model, and makes one step in each iteration of the loop::

    with training(job, build, Dataset(len(data), batch_size=32, num_epochs=10), options) as run:
        for mini_batches in run:
            run.step([{"images": data.images[i], "labels": data.labels[i]} for i in mini_batches])

Every member keeps the model in plain variables and sums the gradients of its mini-batches. The strategy's
all-reduce sums these over the members, and each member applies the same update, so that the variables stay
equal. (The strategy's mirrored variables would need an aggregation method and a broadcast for each variable.)
The all-reduce is also used to broadcast: rank 0 contributes its values, and all others contribute zeros.

It relies on this behavior of TensorFlow 2.21, which was measured with processes on the loopback of one
machine:

* The strategy's constructor waits without limit until all members have called it, and then returns in all of
  them within a second. So the processes of the next version form their group, build the model and warm up
  while the previous version still trains. Two groups on different ports don't interfere, but one process
  can't be in two groups.
* If a member is killed during a step, the step of the others fails with UnavailableError after 0.3 to 1.4 s
  on a machine with three busy processes per core, whatever the killed member's rank. The group can't be
  repaired, but the processes survive. If a member's machine disappears silently, the others may not notice
  for a long time; then the master's directive makes the agents end their processes.
* If members exit one after the other, rank 0 first, the remaining members are not affected as long as they
  call no collective operation.
* Some time after the constructor, a thread of the group takes over SIGTERM, so the process would not learn
  that it must exit. Therefore `connect`'s handler is reinstalled after the group has been used.
* The constructor must precede any other operation of the process and works only once. So a process that lost
  its group exits, and the agent starts a new one.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from edl_workflows.core.exceptions import CheckpointError, InvalidError, UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.training.checkpoints.tensors import Array, State
from edl_workflows.training.collective import world
from edl_workflows.training.collective.framework import Reduced, Saving, Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.collective.world import World
from edl_workflows.training.data.sampler import Dataset
from edl_workflows.training.job import Job
from edl_workflows.training.options import TrainingOptions
from edl_workflows.training.signals import put_handler_back

__all__ = ["Dataset", "MirroredModel", "TrainingOptions", "World", "training"]

_BROKEN = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
"""Errors of a collective operation when a member is lost, or was restarted as another process."""

_REDUCIBLE = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_STAND_IN = {
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.bfloat16: tf.float32,
}
"""Types that can't be all-reduced, and the types to which they are cast without loss."""

Inputs = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class MirroredModel:
    """The model that a training program builds.

    Attributes:
        weights: variables to train, by a name that is the same in each process.
        losses: returns the loss of each record of a mini-batch; called with the inputs by name.
        optimizer: a Keras optimizer, or any object with ``apply_gradients`` and ``variables``; its ``build``,
            if there is one, creates the variables. It receives the mean gradient of the global batch.
        example: inputs of one mini-batch, for the warm-up step, and for types and shapes.
        more: further variables, such as moving averages. They are saved, and are broadcast when the members
            change. Between changes each member has its own values.
    """

    weights: Mapping[str, Any]
    losses: Callable[..., Any]
    optimizer: Any
    example: Inputs
    more: Mapping[str, Any] | None = None


@contextlib.contextmanager
def training(
    job: Job, build: Callable[[], MirroredModel], dataset: Dataset, options: TrainingOptions
) -> Iterator[World]:
    """Train with the job's other workers.

    On entry, the variables have the values of the checkpoint that the master names, else of the newest
    checkpoint in the store, else the initial values of rank 0. When the block ends without an error, rank 0
    saves. Checkpoints are saved in two stages, as with ``async_save``.

    Args:
        job: from `edl_workflows.training.connect`.
        build: builds the model in eager mode; called once the group has formed.
        dataset: the training data; the same in all members.
        options: how to train.

    Raises:
        InvalidError: the job is not collective, this node is not a member, or a variable can't be broadcast.
        SystemExit: the process was asked to exit, the group broke, or the checkpoint to start from is damaged
            (`Job.start_from`).
    """
    saving = Saving.from_options(options)
    with world.training(job, MirroredTraining(build, options.threads), dataset, saving) as run:
        yield run


class MirroredTraining:
    """A member's model and group: implements `edl_workflows.training.collective.framework.Framework`.

    Args:
        build: builds the model.
        threads: number of TensorFlow's threads; 0: one per core.
    """

    def __init__(self, build: Callable[[], MirroredModel], threads: int = 0) -> None:
        self._build = build
        self._threads = threads

    def join(self, place: Place) -> None:
        """Form the group, build the model, and make a warm-up step that is undone."""
        try:
            # 0 is TensorFlow's default; it refuses a change once it runs, even to the same value.
            if self._threads:
                tf.config.threading.set_intra_op_parallelism_threads(self._threads)
                tf.config.threading.set_inter_op_parallelism_threads(self._threads)
            self._group = _collectively(lambda: AllReduceGroup(place))
        except RuntimeError as error:
            raise InvalidError(
                "TensorFlow was used before its group was formed; create tensors and variables in build: "
                f"{error}"
            ) from error
        self._model = model = self._build()
        self._trained = [_plain(weight) for weight in model.weights.values()]
        self._variables = _variables(model, self._trained)
        self._sums = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in self._trained]
        self._numbers = tf.Variable(tf.zeros(2), trainable=False)
        signature = {name: _spec(value) for name, value in model.example.items()}
        self._accumulate = tf.function(self._accumulate_, input_signature=[signature])
        self._update = tf.function(self._update_, autograph=False)
        numbers = tf.TensorSpec([None], tf.int64)
        self._broadcast = tf.function(self._broadcast_, input_signature=[numbers], autograph=False)
        self._meet = tf.function(lambda: self._group.all_reduce([tf.zeros([1])])[0], autograph=False)
        self._rehearse()
        put_handler_back(signal.SIGTERM)

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        """The values of all variables."""
        return State.of(step, {name: v.numpy() for name, v in self._variables.items()}, metadata)

    def load(self, tensors: Mapping[str, Array]) -> None:
        """Set all variables."""
        for name, variable in self._variables.items():
            tensor = tensors.get(name)
            if (
                tensor is None
                or tensor.shape != tuple(variable.shape)
                or tensor.dtype != variable.dtype.as_numpy_dtype
            ):
                has = "none" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
                raise CheckpointError(
                    f"can't be restored into this model: variable {name} is {variable.dtype.name} of shape "
                    f"{tuple(variable.shape)}, in the checkpoint {has}"
                )
        for name, variable in self._variables.items():
            variable.assign(tensors[name])

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        """Broadcast rank 0's variables and numbers."""
        sent = _collectively(lambda: self._broadcast(tf.constant(numbers, tf.int64)))
        return [int(number) for number in sent.numpy()]

    def step(self, mini_batches: Sequence[Inputs], wishes: Wishes) -> Reduced:
        """Accumulate gradients, all-reduce them, and update."""
        for inputs in mini_batches:
            if len(next(iter(inputs.values()))):  # in the last step of an epoch it may be empty
                self._accumulate(dict(inputs))
        asked = tf.constant([wishes.drain, wishes.leave], tf.float32)
        loss, records, drain, leave = _collectively(lambda: self._update(asked).numpy())
        return Reduced(float(loss / records), Wishes(float(drain), float(leave)))

    def meet(self) -> None:
        """All-reduce a constant, as a barrier."""
        _collectively(self._meet)

    def _rehearse(self) -> None:
        """Trace, place and run everything once, since TensorFlow's first call is slow and would prolong the
        pause of a switch."""
        before = {name: variable.numpy() for name, variable in self._variables.items()}
        self.step([self._model.example], Wishes())
        self.broadcast([0])
        self.meet()
        self.load(before)

    def _accumulate_(self, inputs: Inputs) -> None:
        with tf.GradientTape() as tape:
            losses = self._model.losses(**inputs)
            total = tf.reduce_sum(losses)
        gradients = tape.gradient(total, self._trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        for summed, gradient in zip(self._sums, gradients, strict=True):
            summed.assign_add(tf.convert_to_tensor(gradient))  # gradients of embeddings are IndexedSlices
        self._numbers.assign_add(tf.stack([tf.cast(total, tf.float32), tf.cast(tf.size(losses), tf.float32)]))

    def _update_(self, wishes: Any) -> Any:
        mine = [*map(tf.convert_to_tensor, self._sums), tf.concat([self._numbers, wishes], 0)]
        *gradients, numbers = self._group.all_reduce(mine)
        records = numbers[1]
        means = [gradient / tf.cast(records, gradient.dtype) for gradient in gradients]
        self._model.optimizer.apply_gradients(zip(means, self._model.weights.values(), strict=True))
        for summed in (*self._sums, self._numbers):
            summed.assign(tf.zeros_like(summed))
        return numbers

    def _broadcast_(self, numbers: Any) -> Any:
        mine = [numbers, *map(tf.convert_to_tensor, self._variables.values())]
        if self._group.rank:
            mine = [tf.zeros_like(value) for value in mine]
        wire = [tf.cast(value, _STAND_IN.get(value.dtype, value.dtype)) for value in mine]
        sent, *values = self._group.all_reduce(wire)
        for variable, value in zip(self._variables.values(), values, strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        return sent


class AllReduceGroup:
    """The members of a version, which all-reduce tensors. The constructor waits for all of them.

    Args:
        place: this member's place in the group.
    """

    def __init__(self, place: Place) -> None:
        self.rank = place.rank
        cluster = tf.train.ClusterSpec({names.WORKER_TYPE: list(place.addresses)})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type=names.WORKER_TYPE, task_id=place.rank, rpc_layer="grpc"
        )
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)

    def all_reduce(self, tensors: Sequence[Any]) -> list[Any]:
        """The sums over the members. Must be called in a ``tf.function``.

        Args:
            tensors: tensors of types that can be all-reduced. Each type takes one collective operation.
        """
        places = {dtype: [i for i, t in enumerate(tensors) if t.dtype == dtype] for dtype in _REDUCIBLE}

        def reduce() -> list[list[Any]]:
            context = tf.distribute.get_replica_context()
            # `identity`: the strategy needs tensors with a device.
            return [
                context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(tensors[i]) for i in chosen])
                for chosen in places.values()
                if chosen
            ]

        sums = [total for totals in self._strategy.run(reduce) for total in totals]
        order = [i for chosen in places.values() for i in chosen]
        return [total for _, total in sorted(zip(order, sums, strict=True), key=lambda pair: pair[0])]


def _collectively(work: Callable[[], T]) -> T:
    try:
        return work()
    except _BROKEN as error:
        raise UnavailableError(" ".join(str(error).split())[:500]) from error


def _variables(model: MirroredModel, trained: Sequence[Any]) -> dict[str, Any]:
    """All variables by their names in checkpoints."""
    if twice := model.weights.keys() & (model.more or {}).keys():
        raise InvalidError(f"variables in weights and more have the same name: {', '.join(sorted(twice))}")
    if hasattr(model.optimizer, "build"):
        model.optimizer.build(list(model.weights.values()))
    own = model.optimizer.variables
    variables = dict(zip(model.weights, trained, strict=True))
    variables |= {name: _plain(variable) for name, variable in (model.more or {}).items()}
    # Keras numbers its optimizers' variables differently in each process; only their order is stable.
    variables |= {f"optimizer/{i}": _plain(v) for i, v in enumerate(own() if callable(own) else own)}
    for name, variable in variables.items():
        if variable.dtype not in (*_REDUCIBLE, *_STAND_IN):
            raise InvalidError(
                f"variable {name} of type {variable.dtype.name} can't be summed over the members"
            )
    return variables


def _plain(variable: Any) -> Any:
    """The TensorFlow variable of a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _spec(value: Any) -> Any:
    """The TensorSpec of inputs like `value`, with any number of records."""
    array = np.asarray(value)
    return tf.TensorSpec([None, *array.shape[1:]], tf.as_dtype(array.dtype))
