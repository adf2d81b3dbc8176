"""TensorFlow adapter: between-graph parameter-server training with ``tf.compat.v1`` that follows the job's cluster.

A training program says how to build its model and runs steps in a ``with training(...)`` block; in a parameter server
the same line serves until the end. Everything that can be done before a cluster version becomes active is done before:
imports, the graph with its save and restore operations, the server, the session, the variables' first values. What is
left for the switch is to restore and to step.

How the servers come together: each process runs a TensorFlow server that knows nobody, and the worker's session brings
the cluster along (ClusterSpec propagation), listing the parameter servers and itself. So parameter servers need not
know of workers that come later. Two facts of TensorFlow that this rests on: a server that was booted as the task which
the propagated cluster makes of it is refused, hence the boot as job ``local``; and sessions share variables only with
``share_session_state_in_clusterspec_propagation``.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from edl_workflows.agent.checkpoints import CheckpointStore
from edl_workflows.agent.job import Job
from edl_workflows.agent.layout import Layout, difference
from edl_workflows.agent.remote_store import open_store
from edl_workflows.agent.tensors import State
from edl_workflows.agent.tf_check import BATCH_FILE, BATCH_TENSOR, LossCheck
from edl_workflows.agent.tf_layout import (
    PARTS,
    find_layout,
    layout_of_checkpoint,
    layout_of_graph,
    partition_as,
    partition_by_size,
    unsaved_state,
)
from edl_workflows.agent.tf_state import GraphVariables
from edl_workflows.agent.two_stages import TwoStages
from edl_workflows.exceptions import CheckpointError, InvalidError
from edl_workflows.jobs import names
from edl_workflows.protocol import addresses
from edl_workflows.protocol.cluster import CheckpointRef, Cluster
from edl_workflows.protocol.nodes import ServerChanges

tf1 = tf.compat.v1

MODEL_FILE = "model.ckpt"
"""Prefix of TensorFlow's files within a checkpoint's folder."""
CONNECT_SECONDS = 0.05
INITIALISED_SECONDS = 0.02
"""How often a worker asks whether the chief has initialised the variables: part of the stall of a switch."""

_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
)
"""What a step raises when a parameter server is gone, or came back without its variables."""

_UNFIT = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
"""What restoring raises when the files are not those of the model's variables."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """What a training program builds.

    Attributes:
        train: operation that makes one step and increments the global step.
        loss: scalar tensor of the step's loss.
        inputs: placeholders by name.
        example: values of the inputs for one step that a prepared successor makes and throws away, since TensorFlow
            optimises and places the graph in its first step. Without it that is part of the stall of a switch.
        check: scalar tensor that is compared before and after the servers change, of the last batch; None: the loss. For a
            model whose loss is random, as with dropout: the loss without it.
    """

    train: Any
    loss: Any
    inputs: Mapping[str, Any]
    example: Mapping[str, Any] = field(default_factory=dict)
    check: Any = None


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Attributes:
        checkpoint_dir: folder or URI (``s3://…``, by fsspec) of the checkpoints, shared by chiefs that may run on other
            machines.
        save_seconds: between periodic checkpoints; None: only on the master's request and at the end.
        keep: checkpoints that stay.
        partitions: into so many parts each variable is cut; 0: by its size, into at most 16, or as many as there are
            parameter servers if these are more. Only for a training that begins: afterwards the checkpoints tell how each
            variable is cut, and that stays, however many servers there are.
        threads: of TensorFlow in each process, for operations and within them; 0: as many as there are cores.
        async_save: save in two stages: training waits for a copy in shared memory only, which the agent brings to storage.
            The checkpoints' format is then safetensors (`edl_workflows.agent.tensors.load`), not TensorFlow's.
        memory_seconds: with ``async_save``: between copies that stay in memory, from which the agent saves when the chief's
            process dies; None: only what goes to storage is copied.
        replicate: with ``async_save``: another node's agent holds the newest copy, too.
    """

    checkpoint_dir: Path | str
    save_seconds: float | None = 600.0
    keep: int = 3
    threads: int = 0
    async_save: bool = False
    memory_seconds: float | None = None
    replicate: bool = False
    partitions: int = 0


class Training:
    """A worker's or chief's running training. Made by `training`."""

    def __init__(self, job: Job, graph: "_Graph", session: Any) -> None:
        self.job = job
        self.model = graph.model
        self.graph = graph.graph
        self.session = session
        self._step = graph.make_step
        self._check = graph.check

    def step(self, **values: Any) -> tuple[int, float]:
        """Make one step and report it.

        Args:
            values: of the model's inputs.

        Returns:
            The global step after it, and the loss.

        Raises:
            SystemExit: the cluster broke, and this process with it; the next one goes on.
        """
        try:
            step, loss = self._step(self.session, values)
            self._check.last = values
        except _LOST as error:
            self.job.cluster_lost(_one_line(error))
        self.job.report_step(step, loss)
        return step, loss


@contextlib.contextmanager
def training(job: Job, build: Callable[[], Model], options: TrainingOptions) -> Iterator[Training]:
    """Train with the job's parameter servers. In a parameter server this serves and never enters the block.

    On entry the variables have their values: those of the checkpoint that the master names; else of the newest in the
    folder; else the initial ones. When the block ends without an error the chief saves.

    Args:
        job: from `edl_workflows.agent.connect`.
        build: makes the model in the default graph with ``tf.compat.v1``; variables are partitioned and placed on the
            parameter servers without its help. How they are partitioned does not depend on how many servers there are.
        options: how to train.

    Raises:
        InvalidError: the job has no parameter servers, or this node is an evaluator.
        SystemExit: told to end, or the checkpoint to start from is damaged (`Job.start_from`).
    """
    if job.node.type == names.EVALUATOR_TYPE:
        raise InvalidError(
            f"{job.node} does not train: give evaluators a program that follows a CheckpointStore"
        )
    tf1.disable_eager_execution()
    server = _boot(job, options)
    if job.node.type == names.PS_TYPE:
        job.serve()
    cluster = job.cluster
    if not cluster.ps:
        raise InvalidError(f"job {job.name} has no parameter servers: add replicas of type ps")
    store = open_store(options.checkpoint_dir, options.keep)
    graph = _Graph(job, cluster, build, options.partitions, _layout_to_keep(store))
    _say_what_may_change(job, graph, options)
    session = _connect(job, server, cluster, graph, options)
    try:
        _initialise(job, graph, session, store)
    except _LOST as error:
        job.cluster_lost(_one_line(error))
    _set_saving(job, graph, session, store, options)
    job.model_check.evaluate_with(lambda: graph.check.before(session))
    yield Training(job, graph, session)
    job.save_last(always=True)
    job.close()


def _set_saving(
    job: Job, graph: "_Graph", session: Any, store: CheckpointStore, options: TrainingOptions
) -> None:
    if not options.async_save:
        job.save_with(lambda: graph.save(session, store, job.data_position), options.save_seconds)
        return
    job.save_in_two_stages(
        TwoStages(
            lambda: graph.state(session),
            store,
            every_seconds=options.save_seconds,
            memory_seconds=options.memory_seconds,
            replicate=options.replicate,
        )
    )


class _Graph:
    """The model's graph with all that saving, restoring and initialising need, built ahead of the session."""

    def __init__(
        self, job: Job, cluster: Cluster, build: Callable[[], Model], partitions: int, layout: Layout | None
    ) -> None:
        self.graph = tf.Graph()
        self._said_partitions = bool(partitions)
        self.started_from = layout
        me = f"/job:{job.node.type}/task:{job.rank}"
        count = len(cluster.ps)
        placement = tf1.train.replica_device_setter(ps_tasks=count, worker_device=me)
        with self.graph.as_default(), tf1.device(placement):
            with tf1.variable_scope(
                tf1.get_variable_scope(),
                partitioner=tf1.fixed_size_partitioner(partitions)
                if partitions
                else partition_by_size(max(PARTS, count)),
                custom_getter=partition_as(layout) if layout is not None else None,
            ):
                self.step = tf1.train.get_or_create_global_step()
                self.model = build()
            with tf1.control_dependencies([self.model.train]):
                self._step_after = tf.identity(self.step.read_value())
            # Neither saved nor initialised with the others: it says that this version's variables are ready.
            marker = tf1.get_variable(
                "edl_initialised", shape=(), dtype=tf.int32, trainable=False, collections=["edl"]
            )
            self.is_initialised = tf1.is_variable_initialized(marker)
            self.mark_initialised = marker.assign(1)
            self.initialise = tf1.global_variables_initializer()
            self.initialise_local = tf1.group(tf1.local_variables_initializer(), tf1.tables_initializer())
            # The chief itself reads and writes the files, so that they are published as one.
            with tf1.device(f"{me}/cpu:0"):
                self._saver = tf1.train.Saver(max_to_keep=None)
            self._saved = tf1.global_variables()
            self.layout = layout_of_graph(self.graph)
        self.graph.finalize()
        self.check = LossCheck(
            self.model.loss if self.model.check is None else self.model.check, self.model.inputs
        )
        self.batch = b""
        """That was kept with the checkpoint which was restored last."""

    def make_step(self, session: Any, values: Mapping[str, Any]) -> tuple[int, float]:
        """Make one step; the global step after it, and the loss."""
        feed = {self.model.inputs[name]: value for name, value in values.items()}
        fetches = [self.model.train, self.model.loss, self._step_after]
        _, loss, step = session.run(fetches, feed_dict=feed)
        return int(step), float(loss)

    def state(self, session: Any) -> State:
        """All variables as they are."""
        return GraphVariables(self._saved).state(
            session, int(session.run(self.step)), self.layout, self.check.take()
        )

    def save(
        self, session: Any, store: CheckpointStore, position: Mapping[str, Any] | None = None
    ) -> CheckpointRef:
        """Save all variables as a new checkpoint, in TensorFlow's format."""
        step = int(session.run(self.step))

        batch = self.check.take()

        def write(folder: Path) -> None:
            if batch:
                (folder / BATCH_FILE).write_bytes(batch)
            self._saver.save(session, str(folder / MODEL_FILE), write_meta_graph=False, write_state=False)

        return store.publish(step, write, position=position, variables=self.layout)

    def restore(self, session: Any, checkpoint: CheckpointRef, job: Job, store: CheckpointStore) -> None:
        """Set all variables from a checkpoint, whichever of the two ways it was saved.

        Raises:
            CheckpointError: it is whole, but of another model, or its variables are cut in another way.
        """
        in_memory = job.holds(checkpoint)
        self._require_same_layout(checkpoint, store, may_be_gone=in_memory)
        prefix = None if in_memory else store.local(checkpoint) / MODEL_FILE
        if prefix is not None and prefix.with_suffix(".ckpt.index").exists():
            self._restore_files(session, checkpoint, prefix)
            kept = prefix.with_name(BATCH_FILE)
            self.batch = kept.read_bytes() if kept.exists() else b""
        else:
            with job.state(checkpoint, store) as state:
                GraphVariables(self._saved).restore(session, state.tensors, checkpoint.uri)
                self.batch = state.tensors[BATCH_TENSOR].tobytes() if BATCH_TENSOR in state.tensors else b""
        log.info("restored step %d from %s", checkpoint.step, checkpoint.uri)

    def _require_same_layout(
        self, checkpoint: CheckpointRef, store: CheckpointStore, *, may_be_gone: bool
    ) -> None:
        try:
            saved = layout_of_checkpoint(checkpoint, store)
        except CheckpointError:
            if may_be_gone:
                return
            raise
        if saved is None and not self._said_partitions:
            raise CheckpointError(
                f"{checkpoint.uri}: does not say how its variables are cut. The version that saved it cut each into as many "
                "parts as there were parameter servers: say TrainingOptions(partitions=…) with their number"
            )
        if saved is not None and (what := difference(saved, self.layout)):
            raise CheckpointError(f"{checkpoint.uri}: can't be restored into this model: {what}")

    def _restore_files(self, session: Any, checkpoint: CheckpointRef, prefix: Path) -> None:
        try:
            self._saver.restore(session, str(prefix))
        except _UNFIT as error:
            raise CheckpointError(
                f"{checkpoint.uri}: can't be restored into this model: {_one_line(error)}"
            ) from error


def _say_what_may_change(job: Job, graph: _Graph, options: TrainingOptions) -> None:
    """Which changes of its servers the model survives. That it would not survive those of a version which is prepared is found
    before anybody stops for it."""
    if lost := unsaved_state(graph.graph, in_two_stages=options.async_save):
        job.allow_server_changes(ServerChanges.NEVER, lost)
    else:
        job.allow_server_changes(ServerChanges.ANY)
    if (
        job.preparing
        and graph.started_from is not None
        and (what := difference(graph.started_from, graph.layout))
    ):
        job.refuse_version(f"its variables depend on the number of parameter servers: {what}")


def _layout_to_keep(store: CheckpointStore) -> Layout | None:
    try:
        return find_layout(store)
    except CheckpointError as error:  # of the one to start from the master hears when the chief restores it
        log.warning("%s", error)
        return None


def _session_config(options: TrainingOptions) -> Any:
    return tf1.ConfigProto(
        intra_op_parallelism_threads=options.threads, inter_op_parallelism_threads=options.threads
    )


def _boot(job: Job, options: TrainingOptions) -> Any:
    """This process's TensorFlow server, listening on the port of its cluster version.

    Its name is the address that others dial: TensorFlow listens on all interfaces of any name, but its session finds
    itself in the cluster that it brings along by this name alone.
    """
    address = job.environment.listen_address(job.version)
    return tf1.train.Server(
        {"local": [address]}, job_name="local", task_index=0, config=_session_config(options)
    )


def _connect(job: Job, server: Any, cluster: Cluster, graph: _Graph, options: TrainingOptions) -> Any:
    """A session over the cluster; waits for its parameter servers."""
    servers = {member.rank: _await_server(job, member.address) for member in cluster.ps}
    spec = tf1.train.ClusterSpec(
        {
            names.PS_TYPE: servers,
            job.node.type: {job.rank: job.environment.listen_address(cluster.version)},
        }
    )
    config = _session_config(options)
    config.cluster_def.CopyFrom(spec.as_cluster_def())
    config.device_filters.extend([f"/job:{names.PS_TYPE}", f"/job:{job.node.type}/task:{job.rank}"])
    config.experimental.share_session_state_in_clusterspec_propagation = True
    return tf1.Session(server.target, graph=graph.graph, config=config)


def _await_server(job: Job, address: str) -> str:
    """Wait until a parameter server listens; returns where. Its address may become known only meanwhile."""
    while not job.terminated:
        reachable = addresses.resolve(address)
        host, _, port = reachable.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return reachable
        time.sleep(CONNECT_SECONDS)
    raise SystemExit(143)


def _initialise(job: Job, graph: _Graph, session: Any, store: CheckpointStore) -> None:
    """Prepare, wait until the version is active, and see to it that its variables have their values."""
    session.run(graph.initialise_local)
    rehearsed = not job.active and job.is_chief and not session.run(graph.is_initialised)
    if rehearsed:
        _rehearse(job, graph, session, store)
    job.wait_until_active()
    while not session.run(graph.is_initialised):
        if job.is_chief:
            _set_values(job, graph, session, store, keep=rehearsed)
            session.run(graph.mark_initialised)
        else:
            job.between_steps()
            time.sleep(INITIALISED_SECONDS)


def _set_values(job: Job, graph: _Graph, session: Any, store: CheckpointStore, *, keep: bool) -> None:
    """The variables' values: those of the checkpoint, else the initial ones. `keep`: the latter stand already."""
    checkpoint = job.start_from(store)
    if not keep or checkpoint is None:
        session.run(graph.initialise)
    if checkpoint is not None:
        try:
            graph.restore(session, checkpoint, job, store)
        except CheckpointError as error:
            job.checkpoint_damaged(checkpoint, error)
        if refused := job.model_check.confirm(lambda: _loss_of_kept_batch(job, graph, session)):
            job.cluster_lost(refused)


def _loss_of_kept_batch(job: Job, graph: _Graph, session: Any) -> float:
    try:
        return graph.check.of(session, graph.batch)
    except _LOST as error:
        job.cluster_lost(_one_line(error))


def _rehearse(job: Job, graph: _Graph, session: Any, store: CheckpointStore) -> None:
    """Do once what the switch will need, while the predecessor still trains: the first time takes longest.

    Only the chief may, and only before its version is active: it sets all variables again then.
    """
    session.run(graph.initialise)
    with contextlib.suppress(CheckpointError):  # of the one to start from the master hears in its time
        newest = store.newest()
        if newest is not None:
            graph.restore(session, newest, job, store)
    with contextlib.suppress(
        InvalidError, ValueError, tf.errors.InvalidArgumentError
    ):  # no batch, or not for this model
        graph.check.of(session, graph.batch)
    if graph.model.example:
        graph.make_step(session, graph.model.example)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
